-- Puts messages back into their queues, and removes the records of their owner.
--
-- A message is put back once, even if several workers run this for it.
--
-- KEYS  1 unacked, 2 index, 3 owner of, 4 held, 5 alive, 6 due, 7 owners on this machine,
--       8 ... lists of queues
-- ARGV  1 owner ("" for messages without one),
--       2 value that `alive` must have ("*" for any, "" for none),
--       3 latest time in the index ("" for any): messages refreshed since then stay,
--       4 RPUSH or LPUSH, 5 "1" to forget the owner once it holds nothing,
--       then for each message: its tag, its number of copies (-1: only remove it from `held`),
--       and for each copy the number of its list, from 1, and its text
-- Returns  how many messages were put back; -1 if `alive` has another value

local owner = ARGV[1]
if ARGV[2] ~= '*' and (redis.call('GET', KEYS[5]) or '') ~= ARGV[2] then return -1 end

local restored, at = 0, 6
while at <= #ARGV do
  local tag, copies = ARGV[at], tonumber(ARGV[at + 1])
  local time = redis.call('ZSCORE', KEYS[2], tag)
  if ARGV[3] == '' or (time and tonumber(time) <= tonumber(ARGV[3])) then
    if (redis.call('HGET', KEYS[3], tag) or '') == owner then
      if copies >= 0 and redis.call('HDEL', KEYS[1], tag) == 1 then
        for copy = 1, copies do
          local argument = at + 2 * copy
          redis.call(ARGV[4], KEYS[7 + ARGV[argument]], ARGV[argument + 1])
        end
        restored = restored + 1
      end
      if copies >= 0 then redis.call('ZREM', KEYS[2], tag) end
      redis.call('HDEL', KEYS[3], tag)
    end
    redis.call('HDEL', KEYS[4], tag)
  end
  at = at + 2 + 2 * math.max(copies, 0)
end

if ARGV[5] == '1' and redis.call('HLEN', KEYS[4]) == 0 then
  redis.call('DEL', KEYS[5])
  redis.call('ZREM', KEYS[6], owner)
  redis.call('SREM', KEYS[7], owner)
end
return restored
