"""Lua scripts: what must happen in Redis in one step.

Kombu's own keys, `unacked` and `unacked_index`, keep kombu's form byte for byte.
Beside them lie ours: who holds a message (`owner of`), what a worker holds (`held`,
with "1" for what is running and "0" for what waits), whether it lives (`alive`, which
expires), who there is (`owners`), and when one is to be looked at (`due`).  Of each
machine there are its owners, and which of them is its sweeper.  Times are Redis' own, so
that no host's clock can do harm.  Scripts that must work on a full Redis begin with a
command that Redis allows then; what follows in the same script is allowed too.

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

from celery_batch.protocol import FACTS_ID

__all__ = [
    "DONE",
    "KEEP",
    "LOOK",
    "NOW",
    "POP",
    "RENEW",
    "RETIRE",
    "RETURN",
    "STORE",
    "SWEEP",
]


#: How a script begins that needs the time.
NOW = """
local clock = redis.call('TIME')
local now = clock[1] .. '.' .. string.format('%06d', clock[2])
"""


#: Write down a message that was read by itself.
#: KEYS: index, unacked, owner of, held, owners.  ARGV: owner, tag, entry.
KEEP = (
    NOW
    + """
redis.call('ZREM', KEYS[1], ARGV[2])
redis.call('ZADD', KEYS[1], now, ARGV[2])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[1])
redis.call('HSET', KEYS[4], ARGV[2], '0')
redis.call('SADD', KEYS[5], ARGV[1])
"""
)


#: Cross off what is acknowledged, then mark what runs.
#: KEYS: index, unacked, owner of, held.  ARGV: the tags of what is acknowledged, those of
#: what runs, each on a line of its own: one argument is soon written.
DONE = """
local function split(text)
  local tags = {}
  for tag in string.gmatch(text, '[^\\n]+') do tags[#tags + 1] = tag end
  return tags
end
local done = split(ARGV[1])
redis.call('HDEL', KEYS[4], '')
for first = 1, #done, 1000 do
  local last = math.min(first + 999, #done)
  redis.call('ZREM', KEYS[1], unpack(done, first, last))
  for i = 2, 4 do redis.call('HDEL', KEYS[i], unpack(done, first, last)) end
end
for _, tag in ipairs(split(ARGV[2])) do
  if redis.call('HEXISTS', KEYS[4], tag) == 1 then
    redis.call('HSET', KEYS[4], tag, '1')
  end
end
"""


#: Say that a worker lives, and stand for its machine's sweeper; with a cursor also that some
#: of its messages are looked after.
#: KEYS: alive, owners, held, index, due, the owners on its machine, the sweeper there.
#: ARGV: what alive says, milliseconds, owner, the cursor ("" for none), milliseconds for
#: which one is the sweeper, the sweeper that has died ("" for none).
#: Returns 1 where the worker had been taken for dead, the sweeper, and the next cursor.
RENEW = (
    NOW
    + """
local lapsed = 0
if redis.call('PEXPIRE', KEYS[1], ARGV[2]) == 0 then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  lapsed = 1
end
redis.call('SADD', KEYS[2], ARGV[3])
redis.call('ZADD', KEYS[5], now + ARGV[2] / 1000, ARGV[3])
redis.call('SADD', KEYS[6], ARGV[3])
redis.call('PEXPIRE', KEYS[6], ARGV[2])
local me = ARGV[3] .. ' ' .. ARGV[1]
local sweeper = redis.call('GET', KEYS[7])
if not sweeper or sweeper == me or sweeper == ARGV[6] then
  redis.call('SET', KEYS[7], me, 'PX', ARGV[5])
  sweeper = me
end
if ARGV[4] == '' then return {lapsed, sweeper, '0'} end
local found = redis.call('HSCAN', KEYS[3], ARGV[4], 'COUNT', 200)
local index = {}
for i = 1, #found[2], 2 do
  index[#index + 1] = now
  index[#index + 1] = found[2][i]
end
if #index > 0 then redis.call('ZADD', KEYS[4], 'XX', unpack(index)) end
return {lapsed, sweeper, found[1]}
"""
)


#: Who may have died.  The work does not grow with the number of workers: those that are due,
#: some of the owners on one machine, and a few of all owners, in turn.  The latter finds
#: workers of earlier versions, which do not say when they are due.
#: KEYS: owners, due, the owners on one machine.
#: ARGV: how alive keys begin, the machine ("" for none), seconds until somebody is due again
#: who lives and does not say so himself, the cursors of all owners and of those on the machine.
#: Returns both next cursors, owners without a sign of life, and by turns the owners on the
#: machine and what their signs of life say.
LOOK = (
    NOW
    + """
redis.call('ZREM', KEYS[2], '')
local function alive(owner) return redis.call('GET', ARGV[1] .. owner) end
local all = redis.call('SSCAN', KEYS[1], ARGV[4], 'COUNT', 10)
for _, owner in ipairs(all[2]) do
  if not redis.call('ZSCORE', KEYS[2], owner) then redis.call('ZADD', KEYS[2], now, owner) end
  local said = ARGV[2] ~= '' and alive(owner)
  if said and string.find(said, ARGV[2], 1, true) then redis.call('SADD', KEYS[3], owner) end
end
local missing, near = {}, {}
for _, owner in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 50)) do
  if alive(owner) then redis.call('ZADD', KEYS[2], now + ARGV[3], owner)
  else missing[#missing + 1] = owner end
end
local here = redis.call('SSCAN', KEYS[3], ARGV[5], 'COUNT', 50)
for _, owner in ipairs(here[2]) do
  local said = alive(owner)
  if said then
    near[#near + 1] = owner
    near[#near + 1] = said
  else
    redis.call('SREM', KEYS[3], owner)
  end
end
return {all[1], here[1], missing, near}
"""
)


#: Be the machine's sweeper no longer.
#: KEYS: the sweeper.  ARGV: the owner.
RETIRE = """
local sweeper = redis.call('GET', KEYS[1])
if sweeper and string.find(sweeper, ARGV[1], 1, true) == 1 then redis.call('DEL', KEYS[1]) end
"""


#: Put messages back into their queues, each once whoever asks, and forget who had them.
#: KEYS: unacked, index, owner of, owners, held, alive, due, the owners on this machine, then
#: lists.
#: ARGV: owner ("" for nobody of ours), what alive must say ("*": anything), the latest
#: time a message may have been looked after ("" for any), the command, "1" to forget the
#: owner once it holds nothing; then for each message its tag, its number of copies (-1:
#: only cross it off the list), and for each copy the number of its list and its text.
RETURN = """
local owner = ARGV[1]
if ARGV[2] ~= '*' and (redis.call('GET', KEYS[6]) or '') ~= ARGV[2] then return -1 end
local given, at = 0, 6
while at <= #ARGV do
  local tag, copies = ARGV[at], tonumber(ARGV[at + 1])
  local score = redis.call('ZSCORE', KEYS[2], tag)
  local due = ARGV[3] == '' or (score and tonumber(score) <= tonumber(ARGV[3]))
  if due then
    if (redis.call('HGET', KEYS[3], tag) or '') == owner then
      if copies >= 0 and redis.call('HDEL', KEYS[1], tag) == 1 then
        for copy = 1, copies do
          local place = at + 2 * copy
          redis.call(ARGV[4], KEYS[8 + ARGV[place]], ARGV[place + 1])
        end
        given = given + 1
      end
      if copies >= 0 then redis.call('ZREM', KEYS[2], tag) end
      redis.call('HDEL', KEYS[3], tag)
    end
    redis.call('HDEL', KEYS[5], tag)
  end
  at = at + 2 + 2 * math.max(copies, 0)
end
if ARGV[5] == '1' and redis.call('HLEN', KEYS[5]) == 0 then
  redis.call('SREM', KEYS[4], owner)
  redis.call('DEL', KEYS[6])
  redis.call('ZREM', KEYS[7], owner)
  redis.call('SREM', KEYS[8], owner)
end
return given
"""


#: What nobody has looked after for too long, latest first.
#: KEYS: index, owner of.  ARGV: seconds, how alive and held keys begin, how many.
#: Returns the time before which, then tag, owner and flag of each.
SWEEP = """
local clock = redis.call('TIME')
local latest = string.format('%.6f', clock[1] + clock[2] / 1000000 - ARGV[1])
local found = {latest}
for _, tag in ipairs(redis.call('ZREVRANGEBYSCORE', KEYS[1], latest, 0, 'LIMIT', 0, ARGV[4])) do
  local owner = redis.call('HGET', KEYS[2], tag) or ''
  if owner == '' or redis.call('EXISTS', ARGV[2] .. owner) == 0 then
    local flag = owner ~= '' and redis.call('HGET', ARGV[3] .. owner, tag) or '0'
    found[#found + 1] = {tag, owner, flag}
  end
end
return found
"""


#: How a payload begins that says of which batch its replies come.
_FACTS = f"local facts_id = '{len(FACTS_ID)}:{FACTS_ID},'"


#: Store results, notify who subscribed to their keys, and tell each client all of its own.
#: KEYS: where they are stored.  ARGV: most bytes of a value that is told; characters of a
#: key before the task's id; for each result an order: "l" to look whether what is stored
#: stands, "w" to write or "k" to keep it, seconds to live (0: for ever), ":" and the number
#: of the address to tell (0 for none), " "; four bytes for each one's wait; the values; for
#: each address a channel, what is said of the batch before the waits ("" for nothing), and
#: what stands before the id of a task whose state is no end.
#: Returns the numbers of those that only Python can judge, and why a client was not told.
#: Told is what is stored in the end, by whomever: a former answer may have been missed.
STORE = (
    _FACTS
    + """
local no_wait = '\\0\\0\\192\\127'
local function stands(stored)
  local state = string.match(stored, '^{"status": "([^"\\\\]*)"')
  if not state and #stored < 65536 and string.byte(stored) == 123 then
    local readable, meta = pcall(cjson.decode, stored)
    state = readable and type(meta) == 'table' and meta.status
  end
  if type(state) ~= 'string' then return nil end
  return state == 'SUCCESS' or state == 'REVOKED'
end
local function write(key, seconds, value)
  local done
  if seconds == '0' then done = redis.pcall('SET', key, value)
  else done = redis.pcall('SETEX', key, seconds, value) end
  if done.err then return done end
  done = redis.pcall('PUBLISH', key, value)
  return type(done) == 'table' and done
end
local most, prefix = tonumber(ARGV[1]), tonumber(ARGV[2])
local unsure, news, waits, i = {}, {}, {}, 0
local addresses = 4 + #KEYS
for what, seconds, address in string.gmatch(ARGV[3], '(%a)(%-?%d+):(%d+) ') do
  i = i + 1
  local key, value = KEYS[i], ARGV[4 + i]
  local stored = what ~= 'w' and redis.pcall('GET', key)
  if type(stored) ~= 'string' or stored == '' then stored = false end
  local kept = stored and (what == 'k' or stands(stored))
  if kept == nil then
    unsure[#unsure + 1] = i
  else
    if kept then
      value = stored
    elseif what ~= 'k' then
      local failed = write(key, seconds, value)
      if failed then return failed end
    end
    address = tonumber(address)
    if address > 0 then
      local about = addresses + 3 * address
      local id = (kept and '' or ARGV[about]) .. string.sub(key, prefix + 1)
      if #value > most then value = '' end
      local parts = news[address] or {''}
      news[address] = parts
      if ARGV[about - 1] ~= '' then
        local theirs = waits[address] or {}
        waits[address] = theirs
        theirs[#theirs + 1] = kept and no_wait or string.sub(ARGV[4], 4 * i - 3, 4 * i)
      end
      parts[#parts + 1] = #id .. ':' .. id .. ',' .. #value .. ':'
      parts[#parts + 1] = value
      parts[#parts + 1] = ','
    end
  end
end
local untold = ''
for address = 1, (#ARGV - addresses) / 3 do
  local parts = news[address]
  local about = addresses + 3 * address
  if parts then
    if waits[address] then
      local said = ARGV[about - 1] .. table.concat(waits[address])
      parts[1] = facts_id .. #said .. ':' .. said .. ','
    end
    local told = redis.pcall('PUBLISH', ARGV[about - 2], table.concat(parts))
    if type(told) == 'table' then untold = told.err end
  end
end
return {unsure, untold}
"""
)


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
