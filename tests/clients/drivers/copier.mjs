// One copier: reads committed records, writes them on, output and offsets in one transaction.
// node copier.mjs CLIENT OPTIONS-AS-JSON. SIGTERM ends it after its transaction; SIGKILL is the point
// of it. What it cannot go on after it dies of, with status 1: whoever watches starts it again.
import { setTimeout as sleep } from 'node:timers/promises'

const options = JSON.parse(process.argv[3])
const copiers = {
  kafkajs: async () => (await import('./kafkajs.mjs')).lib,
  confluent: async () => (await import('./confluent.mjs')).lib,
  platformatic: async () => await import('./platformatic.mjs')
}
const lib = await copiers[process.argv[2]]()
let stopping = false
process.on('SIGTERM', () => { stopping = true })

const { bootstrap, source, target, group, transactional_id: id, size, session_timeout_ms: session } = options
const heartbeat = Math.floor(session / 8)
const messages = records => records.map(each => ({ value: each.value, partition: each.partition }))

async function die (error, close) {
  process.stderr.write(`${new Date().toISOString()} ${error.stack}\n${(error.errors ?? []).map(each => each.stack).join('\n')}\n`)
  // Who leaves lets the others go on at once; who cannot is missed after its session.
  await Promise.race([close().catch(() => {}), sleep(1_000, null, { ref: false })])
  process.exit(1)
}

// kafkajs cannot name its member in a transaction (TxnOffsetCommit 1): one transactional id for each
// input partition fences the owner before. Who is given a partition takes its id, and reads on from
// what is committed after that.
async function copyByPartition () {
  const admin = lib.admin(bootstrap)
  const consumer = lib.consumer(bootstrap, { group, isolation: 'read_committed', session, heartbeat })
  const close = async () => { await consumer.disconnect() }
  let owners = new Map()
  const forget = owner => owner.disconnect().catch(() => {})
  consumer.on(consumer.events.GROUP_JOIN, () => {
    const before = owners
    owners = new Map()
    for (const owner of before.values()) forget(owner)
  })
  lib.onCrash(consumer, error => die(error, close))

  async function own (partition) {
    const mine = owners
    const owner = lib.producer(bootstrap, { id: `${group}-${partition}` })
    await owner.connect()
    await lib.initialise(owner)
    const [found] = await admin.fetchOffsets({ groupId: group, topics: [source] })
    const offset = Number(found.partitions.find(each => each.partition === partition).offset)
    consumer.seek({ topic: source, partition, offset: String(Math.max(0, offset)) })
    mine.set(partition, owner)
  }

  async function copy (owner, partition, records) {
    const open = await owner.transaction()
    await lib.send(open, { topic: target, messages: messages(records) })
    const offset = String(Number(records.at(-1).offset) + 1)
    await open.sendOffsets({ consumerGroupId: group, topics: [{ topic: source, partitions: [{ partition, offset }] }] })
    await open.commit()
  }

  await admin.connect()
  await consumer.connect()
  await consumer.subscribe({ topics: [source], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, isRunning, isStale, heartbeat: beat }) => {
      const partition = batch.partition
      for (let at = 0; at < batch.messages.length && isRunning() && !isStale() && !stopping; at += size) {
        const owner = owners.get(partition)
        try {
          if (!owner) return await own(partition)
          const records = batch.messages.slice(at, at + size).map(each => ({ ...each, partition }))
          await copy(owner, partition, records)
          resolveOffset(records.at(-1).offset)
        } catch (error) {
          // Whether it was committed is not known: own it anew, and read what is.
          process.stderr.write(`${error.stack}\n`)
          owners.delete(partition)
          if (owner) forget(owner)
          throw error
        }
        await beat()
      }
    }
  })
  while (!stopping) await sleep(20)
  await close()
  process.exit(0)
}

async function copyAsMember () {
  const consumer = lib.consumer(bootstrap, { group, isolation: 'read_committed', session, heartbeat })
  const producer = lib.producer(bootstrap, { id })
  const close = async () => { await consumer.disconnect() }
  await producer.connect().catch(error => die(error, close))
  await consumer.connect()
  await consumer.subscribe({ topics: [source] })
  await consumer.run({
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, isStale }) => {
      const partition = batch.partition
      for (let at = 0; at < batch.messages.length && !isStale() && !stopping; at += size) {
        const records = batch.messages.slice(at, at + size).map(each => ({ ...each, partition }))
        const open = await producer.transaction()
        try {
          await lib.send(open, { topic: target, messages: messages(records) })
          const offset = String(Number(records.at(-1).offset) + 1)
          await open.sendOffsets({ consumer, topics: [{ topic: source, partitions: [{ partition, offset }] }] })
          await open.commit()
          resolveOffset(records.at(-1).offset)
        } catch (error) {
          await open.abort().catch(each => die(each, close))
          process.stderr.write(`aborted: ${error.message}\n`)
          return consumer.seek({ topic: source, partition, offset: records[0].offset })
        }
      }
    }
  })
  while (!stopping) await sleep(20)
  await close()
  process.exit(0)
}

// A message of this client knows the generation in which it was fetched, and its offset is committed
// under that one. A stream keeps its place over a rebalance even where nothing is committed, so each
// generation reads from a new one.
async function copyFromStreams () {
  const consumer = lib.consumer(bootstrap, group, { sessionTimeout: session, heartbeatInterval: heartbeat })
  const producer = lib.transactional(bootstrap, id)
  const close = async () => { await consumer.close(true) }
  let generation = 0
  consumer.on('consumer:group:join', () => { generation++ })
  try {
    while (!stopping) {
      let buffer = []
      const stream = await consumer.consume({ topics: [source], mode: 'committed', fallbackMode: 'earliest', autocommit: false, isolationLevel: 1 })
      const mine = generation
      stream.on('data', each => buffer.push(each))
      stream.on('error', error => die(error, close))
      while (!stopping && mine === generation) {
        const records = buffer.slice(0, size)
        buffer = buffer.slice(size)
        if (records.length === 0) {
          await sleep(10)
          continue
        }
        const open = await producer.beginTransaction()
        await open.send({ messages: messages(records).map(each => ({ ...each, topic: target })), acks: -1 })
        await open.addConsumer(consumer)
        const last = new Map(records.map(each => [each.partition, each]))
        for (const each of last.values()) await open.addOffset(each)
        await open.commit()
      }
      await stream.close()
    }
  } catch (error) {
    await die(error, close)
  }
  await close()
  process.exit(0)
}

process.on('unhandledRejection', error => die(error, async () => {}))
const copy = { kafkajs: copyByPartition, confluent: copyAsMember, platformatic: copyFromStreams }[process.argv[2]]
await copy().catch(error => die(error, async () => {}))
