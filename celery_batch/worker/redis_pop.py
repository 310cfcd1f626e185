"""
The script that hands out messages, and writes down who has them.

Rule 1: nothing in it may fail on what anybody can send: a script that fails half way
        has popped messages that nobody then has.
Rule 2: a message is only read, never encoded again, which would turn an empty list into
        an empty object.
Rule 3: a message of kombu's ends with what is needed of it, which is found without
        decoding the whole; only where it is found in an object that must be the message's
        own properties.  Everything else is decoded.  What the two make of a message that
        is no JSON may differ: it is refused, and crossed out if it was written down.
"""

from __future__ import annotations

from celery_batch.worker.redis_scripts import NOW

__all__ = ["POP"]

#: Bytes after which no more messages are handed out: Redis serves nobody else meanwhile, and
#: has each of them several times in its memory.
_FULL = 4 << 20

#: Where the delivery information of a message of kombu's begins, and what it is.  Quotes in
#: texts are escaped, so that the words stand for names here.
_INFO = '"delivery_info": {"exchange": "'
_KEYS = r'^([^"\\%c]*)", "routing_key": "([^"\\%c]*)"}()'

#: Where its tag begins, with which it ends: the object is the outermost one's last part.
_TAG = ', "delivery_tag": "'
_END = r'^([^"\\]*)"}}$'

#: Pop messages and write down who has them.
#: KEYS: index, unacked, owner of, held, owners, alive, then the queues' lists in order.
#: ARGV: how many at most (a chunk counts with its rows), owner, what alive says, its
#: milliseconds, and how many at most of each of the first lists.
#: Returns nothing, or three numbers for each message (its list, the lengths of its tag and
#: of itself), and then all tags and messages in one: a reply of two parts is soon read.
POP = (
    NOW
    + f"local INFO, KEYS_OF, TAG, END = [==[{_INFO}]==], [==[{_KEYS}]==], [==[{_TAG}]==], "
    + f"[==[{_END}]==]\nlocal FULL = {_FULL}\n"
    + """
local found, about, wanted, size = {}, {}, tonumber(ARGV[1]), 0
local index, entries, owners, flags = {}, {}, {}, {}
local function quick(message)
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
local function thorough(message)
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
local most = {}
for number in string.gmatch(ARGV[5] or '', '%d+') do most[#most + 1] = tonumber(number) end
for i = 7, #KEYS do
  local left = most[i - 6] and wanted - most[i - 6] or 0
  while wanted > left and wanted > 0 do
    local message = redis.pcall('RPOP', KEYS[i])
    if type(message) ~= 'string' then break end
    local tag, exchange, key, rows = quick(message)
    if not rows then tag, exchange, key, rows = thorough(message) end
    if rows > 1 then wanted = wanted - rows + 1 end
    if type(tag) == 'string' and tag ~= '' and #tag <= 255 and not string.find(tag, '[^ -~]') then
      index[#index + 1] = now
      index[#index + 1] = tag
      entries[#entries + 1] = tag
      entries[#entries + 1] = '[' .. message .. ', ' .. exchange .. ', ' .. key .. ']'
      owners[#owners + 1] = tag
      owners[#owners + 1] = ARGV[2]
      flags[#flags + 1] = tag
      flags[#flags + 1] = '0'
    else
      tag = ''
    end
    about[#about + 1] = i - 6
    about[#about + 1] = #tag
    about[#about + 1] = #message
    found[#found + 1] = tag
    found[#found + 1] = message
    size = size + #message
    wanted = size < FULL and wanted - 1 or 0
  end
end
if #index > 0 then
  redis.call('ZADD', KEYS[1], unpack(index))
  redis.call('HSET', KEYS[2], unpack(entries))
  redis.call('HSET', KEYS[3], unpack(owners))
  redis.call('HSET', KEYS[4], unpack(flags))
  redis.call('SADD', KEYS[5], ARGV[2])
  if redis.call('PEXPIRE', KEYS[6], ARGV[4]) == 0 then
    redis.call('SET', KEYS[6], ARGV[3], 'PX', ARGV[4])
  end
end
if #found == 0 then return {} end
return {table.concat(about, ' '), table.concat(found)}
"""
)
