-- Finds workers that may be dead.
--
-- The work does not grow with the number of workers: one call looks at the owners whose lease
-- has expired, and at some of the owners on one machine.
--
-- KEYS  1 due, 2 owners on this machine
-- ARGV  1 prefix of `alive` keys, 2 cursor of the owners on this machine,
--       3 seconds for which a lease must be over
-- Returns  the next cursor; owners whose `alive` key has expired; owners on this machine and
--          the values of their `alive` keys, in turn

local clock = redis.call('TIME')
local over = string.format('%.6f', clock[1] + clock[2] / 1000000 - ARGV[3])
local function alive(owner) return redis.call('GET', ARGV[1] .. owner) end

local missing, here = {}, {}
for _, owner in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', over, 'LIMIT', 0, 50)) do
  if not alive(owner) then missing[#missing + 1] = owner end
end

local on_machine = redis.call('SSCAN', KEYS[2], ARGV[2], 'COUNT', 50)
for _, owner in ipairs(on_machine[2]) do
  local description = alive(owner)
  if description then
    here[#here + 1] = owner
    here[#here + 1] = description
  else
    redis.call('SREM', KEYS[2], owner)
  end
end
return {on_machine[1], missing, here}
