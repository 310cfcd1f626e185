-- Renews a worker's lease, refreshes the times of its messages, and may take the search lock.
--
-- KEYS  1 alive, 2 held, 3 index, 4 due, 5 owners on this machine, 6 search lock
-- ARGV  1 value of `alive`, 2 milliseconds until the lease expires, 3 owner,
--       4 HSCAN cursor of the messages to refresh ("" to refresh none),
--       5 milliseconds for which to hold the search lock ("" not to take it)
-- Returns  1 if the lease had expired, else 0; 1 if it has the search lock, else 0; the next cursor
--          ("0" at the end)

local clock = redis.call('TIME')
local now = clock[1] .. '.' .. string.format('%06d', clock[2])

local expired = 0
if redis.call('PEXPIRE', KEYS[1], ARGV[2]) == 0 then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  expired = 1
end
redis.call('ZADD', KEYS[4], now + ARGV[2] / 1000, ARGV[3])
redis.call('SADD', KEYS[5], ARGV[3])
redis.call('PEXPIRE', KEYS[5], ARGV[2])

local has_lock = 0
if ARGV[5] ~= '' and redis.call('SET', KEYS[6], ARGV[3], 'NX', 'PX', ARGV[5]) then
  has_lock = 1
end

if ARGV[4] == '' then return {expired, has_lock, '0'} end
local found = redis.call('HSCAN', KEYS[2], ARGV[4], 'COUNT', 200)
local times = {}
for i = 1, #found[2], 2 do
  times[#times + 1] = now
  times[#times + 1] = found[2][i]
end
if #times > 0 then redis.call('ZADD', KEYS[3], 'XX', unpack(times)) end
return {expired, has_lock, found[1]}
