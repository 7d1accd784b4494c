// Copy a topic exactly once: copy_exactly_once.mjs ADDRESS SOURCE TARGET GROUP NAME
//
// Output and offsets are one transaction, and the transaction names the group's member: whoever slept
// through a rebalance is refused. One NAME for each process. What goes wrong ends it, and it may be
// started again.
import confluent from '@confluentinc/kafka-javascript'

const { Kafka, logLevel } = confluent.KafkaJS
const [address, source, target, group, name] = process.argv.slice(2)
const kafka = new Kafka({ kafkaJS: { brokers: [address], logLevel: logLevel.ERROR } })
const consumer = kafka.consumer({ kafkaJS: { groupId: group, autoCommit: false, fromBeginning: true, readUncommitted: false } })
const producer = kafka.producer({
  kafkaJS: { transactionalId: `${group}-${name}` },
  // Or its group coordinator may never be found again once all brokers were away:
  // confluentinc/librdkafka issue 5511.
  'metadata.recovery.strategy': 'none'
})
await producer.connect()
await consumer.connect()
await consumer.subscribe({ topics: [source] })
await consumer.run({
  eachBatchAutoResolve: false,
  eachBatch: async ({ batch: { partition, messages }, resolveOffset, isStale }) => {
    if (isStale()) return
    const last = messages.at(-1).offset
    const transaction = await producer.transaction()
    try {
      await transaction.send({ topic: target, messages: messages.map(({ key, value }) => ({ key, value })) })
      const offset = `${BigInt(last) + 1n}`
      await transaction.sendOffsets({ consumer, topics: [{ topic: source, partitions: [{ partition, offset }] }] })
      await transaction.commit()
      resolveOffset(last)
    } catch (error) {
      console.error(`again, after ${error.message}`)
      await transaction.abort().catch(() => process.exit(1))
      consumer.seek({ topic: source, partition, offset: messages[0].offset })
    }
  }
})
