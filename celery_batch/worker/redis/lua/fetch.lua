-- Pops messages from queues and records the worker that holds them.
--
-- KEYS  1 index, 2 unacked, 3 owner of, 4 held, 5 due, 6 alive, 7 ... lists of queues, in order
-- ARGV  1 most messages (a chunk counts as its rows), 2 owner, 3 value of `alive`,
--       4 milliseconds until `alive` expires,
--       5 most messages of each of the first lists, with spaces between the numbers,
--       6 most messages of ordinary tasks ("" for any number),
--       7 the names of all batch tasks, each between line breaks
-- Returns  nothing; or three numbers for each message (of its list, from 1; length of its tag,
--          0 if it is not recorded; its own length); all tags and messages, one after the other,
--          in a few strings; how many messages are left in each list, with spaces between the
--          numbers; how many workers hold messages; and the numbers of the lists whose next
--          message is one ordinary task's too many

-- Where the delivery information of a message begins as kombu writes it, and what it is.
-- Quotes within values are escaped, so the words stand for names here.
local INFO = '"delivery_info": {"exchange": "'
local KEYS_OF = '^([^"\\%c]*)", "routing_key": "([^"\\%c]*)"}()'
-- The delivery tag is the last entry of the last object.
local TAG = ', "delivery_tag": "'
local END = '^([^"\\]*)"}}$'
-- Bytes after which no more messages are popped: Redis serves no other client meanwhile, and
-- has each of them several times in memory.
local FULL = 4 * 1024 * 1024

local clock = redis.call('TIME')
local now = clock[1] .. '.' .. string.format('%06d', clock[2])

-- Reads tag, exchange and routing key (as JSON) and rows of a message without decoding it;
-- nil if it has another form than the usual one.
local function scan(message)
  local _, at = string.find(message, ', "properties": {', 1, true)
  if not at or string.find(message, 'batch_rows', 1, true) then return nil end
  local _, info = string.find(message, INFO, at, true)
  if not info then return nil end
  local exchange, key, behind = string.match(message, KEYS_OF, info + 1)
  if not behind then return nil end
  -- No other object is among the properties.
  if string.find(message, '{', at + 1, true) ~= info - 13 then return nil end
  if string.find(message, '{', behind, true) then return nil end
  if string.find(message, '}', at + 1, true) ~= behind - 1 then return nil end
  if string.find(message, '}', behind, true) ~= #message - 1 then return nil end
  local _, name = string.find(message, TAG, behind, true)
  local tag = name and string.match(message, END, name + 1)
  if not tag then return nil end
  return tag, '"' .. exchange .. '"', '"' .. key .. '"', 1
end

-- The same for any message; its tag is nil if it has none.
local function decode(message)
  local readable, decoded = pcall(cjson.decode, message)
  if not readable or type(decoded) ~= 'table' then return nil, '""', '""', 1 end
  local headers, properties = decoded.headers, decoded.properties
  if type(headers) ~= 'table' then headers = {} end
  if type(properties) ~= 'table' then properties = {} end
  local rows, info = headers.batch_rows, properties.delivery_info
  if type(rows) ~= 'number' then rows = 1 end
  if type(info) ~= 'table' then info = {} end
  local exchange = type(info.exchange) == 'string' and info.exchange or ''
  local key = type(info.routing_key) == 'string' and info.routing_key or ''
  return properties.delivery_tag, cjson.encode(exchange), cjson.encode(key), rows
end

-- Whether a message names an ordinary task, in the form in which JSON libraries write headers.
local function is_ordinary(message)
  if type(message) ~= 'string' then return false end
  local _, at = string.find(message, '"task": "', 1, true)
  if not at then _, at = string.find(message, '"task":"', 1, true) end
  local name = at and string.match(message, '^([^"\\%c]+)"', at + 1)
  return name and not string.find(ARGV[7], '\n' .. name .. '\n', 1, true)
end

-- Joins eight strings to one each time, as few strings are parsed faster than many.
--
-- Redis' Lua reads each string that it makes to the end once more, for its hash.  table.concat
-- makes many on the way to a long one.
local function join(p)
  while #p % 8 > 0 do p[#p + 1] = '' end
  local joined = {}
  for i = 1, #p, 8 do
    joined[#joined + 1] = p[i] .. p[i + 1] .. p[i + 2] .. p[i + 3]
      .. p[i + 4] .. p[i + 5] .. p[i + 6] .. p[i + 7]
  end
  return joined
end

local found, lengths, wanted, size = {}, {}, tonumber(ARGV[1]), 0
local times, entries, owners, flags = {}, {}, {}, {}
local most, ordinary, blocked = {}, tonumber(ARGV[6] or ''), {}
for number in string.gmatch(ARGV[5] or '', '%d+') do most[#most + 1] = tonumber(number) end
for i = 7, #KEYS do
  local left = most[i - 6] and wanted - most[i - 6] or 0
  while wanted > left and wanted > 0 do
    if ordinary == 0 and is_ordinary(redis.pcall('LINDEX', KEYS[i], -1)) then
      blocked[#blocked + 1] = i - 6
      break
    end
    local message = redis.pcall('RPOP', KEYS[i])
    if type(message) ~= 'string' then break end
    if ordinary and ordinary > 0 and is_ordinary(message) then ordinary = ordinary - 1 end
    local tag, exchange, key, rows = scan(message)
    if not rows then tag, exchange, key, rows = decode(message) end
    if rows > 1 then wanted = wanted - rows + 1 end
    if type(tag) == 'string' and tag ~= '' and #tag <= 255 and not string.find(tag, '[^ -~]') then
      times[#times + 1] = now
      times[#times + 1] = tag
      entries[#entries + 1] = tag
      entries[#entries + 1] = '[' .. message .. ', ' .. exchange .. ', ' .. key .. ']'
      owners[#owners + 1] = tag
      owners[#owners + 1] = ARGV[2]
      flags[#flags + 1] = tag
      flags[#flags + 1] = '0'
    else
      tag = ''
    end
    lengths[#lengths + 1] = i - 6
    lengths[#lengths + 1] = #tag
    lengths[#lengths + 1] = #message
    found[#found + 1] = tag
    found[#found + 1] = message
    size = size + #message
    wanted = size < FULL and wanted - 1 or 0
  end
end

if #times > 0 then
  redis.call('ZADD', KEYS[1], unpack(times))
  redis.call('HSET', KEYS[2], unpack(entries))
  redis.call('HSET', KEYS[3], unpack(owners))
  redis.call('HSET', KEYS[4], unpack(flags))
  redis.call('ZADD', KEYS[5], 'NX', now, ARGV[2]) -- unless its lease says when
  if redis.call('PEXPIRE', KEYS[6], ARGV[4]) == 0 then
    redis.call('SET', KEYS[6], ARGV[3], 'PX', ARGV[4])
  end
end
if #found == 0 and #blocked == 0 then return {} end
local left = {}
for i = 7, #KEYS do left[i - 6] = redis.call('LLEN', KEYS[i]) end
local workers = math.max(redis.call('ZCARD', KEYS[5]), 1)
return {
  table.concat(lengths, ' '), join(found), table.concat(left, ' '), workers,
  table.concat(blocked, ' '),
}
