"""The Redis registry's commands: each a Lua script, so each is one atomic step on the server.

KEYS, in one hash slot:
  state    hash    schema, replid, epoch, rev
  entries  hash    key -> "<rev> <value as JSON>"
  order    zset    the keys, all of score 0, so in the order of their bytes
  feed     stream  one entry a revision, with the revision as its ID: key, by

`replid` is the server's replication ID when the epoch began. A server takes a new one whenever it
may lack writes that clients have seen: promoted to master, or started anew. Whoever comes first
after that, or finds no registry at all, begins a new epoch. Revisions within an epoch are
contiguous, so the oldest entry of the feed says how far it reaches back.

Every reply is an array whose first element is "ok" or what is wrong.
"""

from __future__ import annotations

KEYS = ("state", "entries", "order", "feed")

_OPEN = """
local STATE, ENTRIES, ORDER, FEED = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local SCHEMA = ARGV[1]
local epoch, rev
local replication = redis.call('INFO', 'replication')
local replid = string.match(replication, 'master_replid:(%x+)')
local _, online = string.gsub(replication, 'slave%d+:[^\\r\\n]*state=online', '')

-- Revisions pass 2^50: tostring() would round them.
local function whole(n) return string.format('%.0f', n) end

local function begin_epoch(at)
  local time = redis.call('TIME')
  local now = (time[1] * 1000 + math.floor(time[2] / 1000)) * 2048
  epoch = math.max(rev + 1, now, at or 0)
  rev = epoch
  -- A full server refuses a script's first write only: this one frees, so an epoch can begin there.
  redis.call('HDEL', STATE, 'replid')
  redis.call('HSET', STATE, 'replid', replid, 'epoch', whole(epoch), 'rev', whole(rev))
  redis.call('XADD', FEED, whole(epoch) .. '-0', 'key', '', 'by', '')
end

local function open()
  local state = redis.call('HMGET', STATE, 'schema', 'replid', 'epoch', 'rev')
  if not state[1] then
    if redis.call('EXISTS', ENTRIES, ORDER, FEED) > 0 then return {'damaged'} end
    rev = 0
    redis.call('HSET', STATE, 'schema', SCHEMA)
    begin_epoch()
    return nil
  end
  if state[1] ~= SCHEMA then return {'schema', state[1]} end
  epoch, rev = tonumber(state[3]), tonumber(state[4])
  if state[2] ~= replid then begin_epoch() end
  return nil
end
"""

GET = """
-- schema, key
local schema = redis.call('HGET', KEYS[1], 'schema')
if schema and schema ~= ARGV[1] then return {'schema', schema} end
return {'ok', redis.call('HGET', KEYS[2], ARGV[2])}
"""

WRITE = (
    _OPEN
    + """
-- schema, key, "put" or "delete", value, expected revision or "", token, "retry" or "",
-- length of the feed, replicas that must be there
local key, verb, value, expected, token = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local problem = open()
if problem then return problem end
if online < tonumber(ARGV[9]) then return {'few', online} end
if ARGV[7] == 'retry' then
  for _, entry in ipairs(redis.call('XREVRANGE', FEED, '+', '-', 'COUNT', 1000)) do
    if entry[2][4] == token then return {'ok', string.match(entry[1], '^%d+'), online} end
  end
end
local blob = redis.call('HGET', ENTRIES, key)
local found = blob and string.match(blob, '^%d+') or '0'
if expected ~= '' and expected ~= found then return {'conflict', found} end
if verb == 'delete' and not blob then return {'ok', whole(rev), 0} end
rev = rev + 1
if verb == 'delete' then
  redis.call('HDEL', ENTRIES, key)
  redis.call('ZREM', ORDER, key)
else
  redis.call('HSET', ENTRIES, key, whole(rev) .. ' ' .. value)
  redis.call('ZADD', ORDER, 0, key)
end
redis.call('HSET', STATE, 'rev', whole(rev))
redis.call('XADD', FEED, 'MAXLEN', '~', ARGV[8], whole(rev) .. '-0', 'key', key, 'by', token)
return {'ok', whole(rev), online}
"""
)

CONFIRM = (
    _OPEN
    + """
-- schema, replicas that must be there. WAIT counts from a connection's last write: this is one.
local problem = open()
if problem then return problem end
if online < tonumber(ARGV[2]) then return {'few', online} end
redis.call('HSET', STATE, 'confirmed', whole(rev))
return {'ok', whole(rev), online}
"""
)

LIST = (
    _OPEN
    + """
-- schema, lower and upper bound of ZRANGEBYLEX, limit
local problem = open()
if problem then return problem end
local reply = {'ok', whole(rev), whole(epoch)}
local keys = redis.call('ZRANGEBYLEX', ORDER, ARGV[2], ARGV[3], 'LIMIT', 0, ARGV[4])
if #keys > 0 then
  for i, blob in ipairs(redis.call('HMGET', ENTRIES, unpack(keys))) do
    reply[#reply + 1] = keys[i]
    reply[#reply + 1] = blob
  end
end
return reply
"""
)

CHANGES = (
    _OPEN
    + """
-- schema, since, limit. After "ok" the revision reached, then key, revision, value or false, ...
-- (An epoch's own entry has no key.)
local since = tonumber(ARGV[2])
local problem = open()
if problem then return problem end
if since < epoch or since > rev then return {'gone'} end
local oldest = redis.call('XRANGE', FEED, '-', '+', 'COUNT', 1)[1]
if since < rev and not (oldest and tonumber(string.match(oldest[1], '^%d+')) <= since + 1) then
  return {'gone'}
end
local reply, keys, last = {'ok', whole(since)}, {}, {}
for _, entry in ipairs(redis.call('XRANGE', FEED, whole(since + 1), '+', 'COUNT', ARGV[3])) do
  local key, at = entry[2][2], string.match(entry[1], '^%d+')
  reply[2] = at
  if not last[key] and key ~= '' then keys[#keys + 1] = key end
  last[key] = at
end
if #keys > 0 then
  for i, blob in ipairs(redis.call('HMGET', ENTRIES, unpack(keys))) do
    for _, part in ipairs({keys[i], last[keys[i]], blob}) do reply[#reply + 1] = part end
  end
end
return reply
"""
)

SWITCH = (
    _OPEN
    + """
-- Puts staged entries in the place of all that is there. KEYS[5], KEYS[6]: entries and order.
-- new schema, number of entries, revision at least, and for a migration also the schema and the
-- revision that it began with
local size, at = tonumber(ARGV[2]), tonumber(ARGV[3])
local state = redis.call('HMGET', STATE, 'schema', 'rev')
rev = tonumber(state[2] or '0')
if ARGV[4] and (state[1] ~= ARGV[4] or state[2] ~= ARGV[5]) then return {'moved'} end
if not ARGV[4] and rev >= at then return {'moved'} end
if redis.call('HLEN', KEYS[5]) ~= size or redis.call('ZCARD', KEYS[6]) ~= size then
  return {'moved'}
end
redis.call('DEL', ENTRIES, ORDER, FEED)
if size > 0 then
  redis.call('RENAME', KEYS[5], ENTRIES)
  redis.call('RENAME', KEYS[6], ORDER)
  redis.call('PERSIST', ENTRIES)
  redis.call('PERSIST', ORDER)
end
redis.call('HSET', STATE, 'schema', SCHEMA)
begin_epoch(at)
return {'ok', whole(rev), online}
"""
)
