-- Ends an owner's role as its machine's sweeper, if it has that role.
--
-- KEYS  1 sweeper
-- ARGV  1 owner
-- Returns nothing.

local sweeper = redis.call('GET', KEYS[1])
if sweeper and string.find(sweeper, ARGV[1], 1, true) == 1 then redis.call('DEL', KEYS[1]) end
