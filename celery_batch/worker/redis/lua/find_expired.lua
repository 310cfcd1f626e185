-- Finds messages whose time was not refreshed within the visibility timeout, latest first.
--
-- Messages of workers that have a lease are left out.
--
-- KEYS  1 index, 2 owner of
-- ARGV  1 the timeout in seconds, 2 prefix of `alive` keys, 3 prefix of `held` keys,
--       4 most messages
-- Returns  the time before which messages are expired, then {tag, owner, "1" if it was running}
--          for each

local clock = redis.call('TIME')
local latest = string.format('%.6f', clock[1] + clock[2] / 1000000 - ARGV[1])

local found = {latest}
for _, tag in ipairs(redis.call('ZREVRANGEBYSCORE', KEYS[1], latest, 0, 'LIMIT', 0, ARGV[4])) do
  local owner = redis.call('HGET', KEYS[2], tag) or ''
  if owner == '' or redis.call('EXISTS', ARGV[2] .. owner) == 0 then
    local running = owner ~= '' and redis.call('HGET', ARGV[3] .. owner, tag) or '0'
    found[#found + 1] = {tag, owner, running}
  end
end
return found
