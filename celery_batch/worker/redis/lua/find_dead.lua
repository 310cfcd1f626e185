-- Finds workers that may be dead.
--
-- The work does not grow with the number of workers: one call looks at the owners whose lease
-- is due to expire, at some of the owners on one machine, and at a few of all owners in turn.
-- The last finds workers of earlier versions, which do not record when they are due.
--
-- KEYS  1 owners, 2 due, 3 owners on this machine
-- ARGV  1 prefix of `alive` keys, 2 this machine ("" if unknown),
--       3 seconds until a live owner is due again that does not record it itself,
--       4 cursor of all owners, 5 cursor of the owners on this machine
-- Returns  both next cursors; owners whose `alive` key has expired; owners on this machine and
--          the values of their `alive` keys, in turn

local clock = redis.call('TIME')
local now = clock[1] .. '.' .. string.format('%06d', clock[2])
local function alive(owner) return redis.call('GET', ARGV[1] .. owner) end

redis.call('ZREM', KEYS[2], '') -- allowed on a full Redis, and so is all that follows
local all = redis.call('SSCAN', KEYS[1], ARGV[4], 'COUNT', 10)
for _, owner in ipairs(all[2]) do
  if not redis.call('ZSCORE', KEYS[2], owner) then redis.call('ZADD', KEYS[2], now, owner) end
  local description = ARGV[2] ~= '' and alive(owner)
  if description and string.find(description, ARGV[2], 1, true) then
    redis.call('SADD', KEYS[3], owner)
  end
end

local missing, here = {}, {}
for _, owner in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 50)) do
  if alive(owner) then redis.call('ZADD', KEYS[2], now + ARGV[3], owner)
  else missing[#missing + 1] = owner end
end

local on_machine = redis.call('SSCAN', KEYS[3], ARGV[5], 'COUNT', 50)
for _, owner in ipairs(on_machine[2]) do
  local description = alive(owner)
  if description then
    here[#here + 1] = owner
    here[#here + 1] = description
  else
    redis.call('SREM', KEYS[3], owner)
  end
end
return {all[1], on_machine[1], missing, here}
