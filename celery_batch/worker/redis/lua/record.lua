-- Records one message that was read by itself, with the worker that holds it.
--
-- KEYS  1 index, 2 unacked, 3 owner of, 4 held, 5 due
-- ARGV  1 owner, 2 delivery tag, 3 kombu's entry of the message
-- Returns nothing.

local clock = redis.call('TIME')
local now = clock[1] .. '.' .. string.format('%06d', clock[2])

redis.call('ZREM', KEYS[1], ARGV[2]) -- allowed on a full Redis, and so is all that follows
redis.call('ZADD', KEYS[1], now, ARGV[2])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[1])
redis.call('HSET', KEYS[4], ARGV[2], '0')
redis.call('ZADD', KEYS[5], 'NX', now, ARGV[1]) -- unless its lease says when
