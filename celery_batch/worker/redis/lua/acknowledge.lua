-- Removes the records of acknowledged messages, and marks messages as running.
--
-- KEYS  1 index, 2 unacked, 3 owner of, 4 held
-- ARGV  1 delivery tags of acknowledged messages, 2 delivery tags of running messages;
--       one tag a line, because one long argument is encoded faster than many short ones
-- Returns nothing.

local function split(text)
  local tags = {}
  for tag in string.gmatch(text, '[^\n]+') do tags[#tags + 1] = tag end
  return tags
end

local acknowledged = split(ARGV[1])
redis.call('HDEL', KEYS[4], '') -- allowed on a full Redis, and so is all that follows
for first = 1, #acknowledged, 1000 do
  local last = math.min(first + 999, #acknowledged)
  redis.call('ZREM', KEYS[1], unpack(acknowledged, first, last))
  for i = 2, 4 do redis.call('HDEL', KEYS[i], unpack(acknowledged, first, last)) end
end
local running = split(ARGV[2])
for first = 1, #running, 1000 do
  local last = math.min(first + 999, #running)
  local held, marks = redis.call('HMGET', KEYS[4], unpack(running, first, last)), {}
  for i, mark in ipairs(held) do
    if mark then
      marks[#marks + 1] = running[first + i - 1]
      marks[#marks + 1] = '1'
    end
  end
  if #marks > 0 then redis.call('HSET', KEYS[4], unpack(marks)) end
end
