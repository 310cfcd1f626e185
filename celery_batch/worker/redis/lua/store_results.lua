-- Stores results, publishes each to the subscribers of its key, and notifies the clients:
-- one message for each reply channel, with all of its results.
--
-- A result that is stored already and final (success, or revoked) stays, and the client is
-- notified of that one: its earlier notification may have been lost.
--
-- KEYS  the key of each result
-- ARGV  1 most bytes of a value that a notification contains, 2 length of the keys' prefix,
--       3 for each result: "l" to look whether the stored result stands, "w" to write, or
--         "k" to keep the stored one; seconds until it expires (0 for never); ":"; the number
--         of the address to notify, from 1 (0 for none); " "
--       4 the wait of each result, four bytes each,
--       then the value of each result,
--       then for each address: its channel, the facts of the batch without the waits ("" for
--         none), and the prefix of the id of a task that has only started
-- Returns  the numbers of the results whose stored state only Python can read, and the error of
--          a failed notification ("" for none)

-- The same as FACTS_ID and NO_WAIT in celery_batch/protocol.py.
local facts_id = '18:celery-batch-facts,'
local no_wait = '\0\0\192\127'

-- Returns nil if the state cannot be read here.
local function is_final(stored)
  local state = string.match(stored, '^{"status": "([^"\\]*)"')
  if not state and #stored < 65536 and string.byte(stored) == 123 then
    local readable, meta = pcall(cjson.decode, stored)
    state = readable and type(meta) == 'table' and meta.status
  end
  if type(state) ~= 'string' then return nil end
  return state == 'SUCCESS' or state == 'REVOKED'
end

-- Returns the error, if there is one.
local function write(key, seconds, value)
  local reply
  if seconds == '0' then reply = redis.pcall('SET', key, value)
  else reply = redis.pcall('SETEX', key, seconds, value) end
  if reply.err then return reply end
  reply = redis.pcall('PUBLISH', key, value)
  return type(reply) == 'table' and reply
end

-- Joins strings, sixteen at a time.
--
-- Redis' Lua reads each string that it makes to the end once more, for its hash.  table.concat
-- makes many on the way to a long one.
local function join(p)
  while #p > 1 do
    while #p % 16 > 0 do p[#p + 1] = '' end
    local joined = {}
    for i = 1, #p, 16 do
      joined[#joined + 1] = p[i] .. p[i + 1] .. p[i + 2] .. p[i + 3]
        .. p[i + 4] .. p[i + 5] .. p[i + 6] .. p[i + 7]
        .. p[i + 8] .. p[i + 9] .. p[i + 10] .. p[i + 11]
        .. p[i + 12] .. p[i + 13] .. p[i + 14] .. p[i + 15]
    end
    p = joined
  end
  return p[1]
end

local largest, prefix = tonumber(ARGV[1]), tonumber(ARGV[2])
local unsure, replies, waits, i = {}, {}, {}, 0
local addresses = 4 + #KEYS
for order, seconds, address in string.gmatch(ARGV[3], '(%a)(%-?%d+):(%d+) ') do
  i = i + 1
  local key, value = KEYS[i], ARGV[4 + i]
  local stored = order ~= 'w' and redis.pcall('GET', key)
  if type(stored) ~= 'string' or stored == '' then stored = false end
  local stays = stored and (order == 'k' or is_final(stored))
  if stays == nil then
    unsure[#unsure + 1] = i
  else
    if stays then
      value = stored
    elseif order ~= 'k' then
      local failed = write(key, seconds, value)
      if failed then return failed end
    end
    address = tonumber(address)
    if address > 0 then
      local last = addresses + 3 * address
      local id = (stays and '' or ARGV[last]) .. string.sub(key, prefix + 1)
      if #value > largest then value = '' end
      local parts = replies[address] or {''}
      replies[address] = parts
      if ARGV[last - 1] ~= '' then
        local those = waits[address] or {}
        waits[address] = those
        those[#those + 1] = stays and no_wait or string.sub(ARGV[4], 4 * i - 3, 4 * i)
      end
      parts[#parts + 1] = #id .. ':' .. id .. ',' .. #value .. ':'
      parts[#parts + 1] = value
      parts[#parts + 1] = ','
    end
  end
end

local unnotified = ''
for address = 1, (#ARGV - addresses) / 3 do
  local parts = replies[address]
  local last = addresses + 3 * address
  if parts then
    if waits[address] then
      local facts = ARGV[last - 1] .. table.concat(waits[address])
      parts[1] = facts_id .. #facts .. ':' .. facts .. ','
    end
    local reply = redis.pcall('PUBLISH', ARGV[last - 2], join(parts))
    if type(reply) == 'table' then unnotified = reply.err end
  end
end
return {unsure, unnotified}
