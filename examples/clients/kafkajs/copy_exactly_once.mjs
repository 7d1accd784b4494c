// Copy a topic exactly once: copy_exactly_once.mjs ADDRESS SOURCE TARGET GROUP NAME
//
// Output and offsets are one transaction. This client cannot name its member in it, so each input
// partition has one transactional id: who is given the partition takes the id, which fences the owner
// before, and reads on from what is committed after that. NAME is for your logs.
import { Kafka, logLevel } from 'kafkajs'

const [address, source, target, group, name] = process.argv.slice(2)
const kafka = new Kafka({ clientId: name, brokers: [address], logLevel: logLevel.ERROR, retry: { retries: 30, maxRetryTime: 1_000 } })
const admin = kafka.admin()
const consumer = kafka.consumer({ groupId: group, readUncommitted: false })
let producers = new Map()

consumer.on(consumer.events.GROUP_JOIN, () => {
  for (const producer of producers.values()) producer.disconnect().catch(() => {})
  producers = new Map()
})

async function own (partition) {
  const mine = producers
  const producer = kafka.producer({ transactionalId: `${group}-${source}-${partition}`, idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  // It takes its epoch with the first transaction only.
  await (await producer.transaction()).abort()
  const [{ partitions }] = await admin.fetchOffsets({ groupId: group, topics: [source] })
  const { offset } = partitions.find(each => each.partition === partition)
  consumer.seek({ topic: source, partition, offset: offset === '-1' ? '0' : offset })
  mine.set(partition, producer)
}

await admin.connect()
await consumer.connect()
await consumer.subscribe({ topics: [source], fromBeginning: true })
await consumer.run({
  autoCommit: false,
  eachBatchAutoResolve: false,
  eachBatch: async ({ batch, resolveOffset, isStale }) => {
    const { partition, messages } = batch
    const producer = producers.get(partition)
    if (!producer) return own(partition)
    if (isStale()) return
    try {
      const transaction = await producer.transaction()
      await transaction.send({ topic: target, messages: messages.map(({ key, value }) => ({ key, value })) })
      const offset = `${BigInt(batch.lastOffset()) + 1n}`
      await transaction.sendOffsets({ consumerGroupId: group, topics: [{ topic: source, partitions: [{ partition, offset }] }] })
      await transaction.commit()
      resolveOffset(batch.lastOffset())
    } catch (error) {
      producers.delete(partition) // whether it was committed is not known: own it anew
      producer.disconnect().catch(() => {})
      throw error
    }
  }
})
