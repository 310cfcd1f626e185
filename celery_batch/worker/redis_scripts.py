"""
What has to happen in Redis in one step, as scripts.

Kombu's own keys, `unacked` and `unacked_index`, keep kombu's form byte for byte.
Beside them lie ours: who holds a message (`owner of`), what a worker holds (`held`,
with "1" for what is running and "0" for what waits), whether it lives (`alive`, which
expires) and who there is (`owners`).  Times are Redis' own, so that no host's clock
can do harm.  Scripts that must work on a full Redis begin with a command that Redis
allows then; what follows in the same script is allowed too.
"""

from __future__ import annotations

from celery_batch.replies import FACTS_ID

__all__ = ["DONE", "KEEP", "MISSING", "NOW", "RENEW", "RETURN", "STORE", "SWEEP"]

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

#: Say that a worker lives; with "1" also that its messages are looked after.
#: KEYS: alive, owners, held, index.  ARGV: what alive says, milliseconds, owner, "1".
#: Returns 1 where the worker had been taken for dead.
RENEW = (
    NOW
    + """
local lapsed = 0
if redis.call('PEXPIRE', KEYS[1], ARGV[2]) == 0 then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  redis.call('SADD', KEYS[2], ARGV[3])
  lapsed = 1
end
if ARGV[4] == '1' then
  local tags = redis.call('HKEYS', KEYS[3])
  for first = 1, #tags, 1000 do
    local index = {}
    for i = first, math.min(first + 999, #tags) do
      index[#index + 1] = now
      index[#index + 1] = tags[i]
    end
    redis.call('ZADD', KEYS[4], 'XX', unpack(index))
  end
end
return lapsed
"""
)

#: Who may have died: owners without a sign of life, and those of one machine.
#: KEYS: owners.  ARGV: how alive keys begin, the machine ("" for none).
MISSING = """
local found = {}
for _, owner in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local alive = redis.call('GET', ARGV[1] .. owner)
  if not alive or (ARGV[2] ~= '' and string.find(alive, ARGV[2], 1, true)) then
    found[#found + 1] = {owner, alive or ''}
  end
end
return found
"""

#: Put messages back into their queues, each once whoever asks, and forget who had them.
#: KEYS: unacked, index, owner of, owners, held, alive, then lists.
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
          redis.call(ARGV[4], KEYS[6 + ARGV[place]], ARGV[place + 1])
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
