// Copy a topic exactly once: copy_exactly_once.mjs ADDRESS SOURCE TARGET GROUP NAME
//
// Output and offsets are one transaction, and the transaction names the group's member and the
// generation in which each message was fetched: whoever slept through a rebalance is refused. One NAME
// for each process. What goes wrong ends it, and it may be started again.
import { Consumer, Producer } from '@platformatic/kafka'
import { setTimeout as sleep } from 'node:timers/promises'

const [address, source, target, group, name] = process.argv.slice(2)
const options = { clientId: name, bootstrapBrokers: [address], retries: 60, retryDelay: 500, autocreateTopics: true }
const consumer = new Consumer({ ...options, groupId: group })
const producer = new Producer({
  ...options,
  transactionalId: `${group}-${name}`,
  idempotent: true,
  // It would begin with producer id 0 and epoch 0, and be refused when it is started again.
  producerId: -1n,
  producerEpoch: -1
})
let generation = 0
consumer.on('consumer:group:join', () => { generation++ })

async function copy (messages) {
  const transaction = await producer.beginTransaction()
  await transaction.send({ messages: messages.map(({ key, value }) => ({ topic: target, key, value })), acks: -1 })
  await transaction.addConsumer(consumer)
  const last = new Map(messages.map(message => [message.partition, message]))
  for (const message of last.values()) await transaction.addOffset(message)
  await transaction.commit()
}

while (true) {
  // A stream keeps its place over a rebalance where nothing is committed: a new one for each.
  const waiting = []
  const stream = await consumer.consume({
    topics: [source],
    mode: 'committed',
    fallbackMode: 'earliest',
    autocommit: false,
    isolationLevel: 1 // read_committed
  })
  const mine = generation
  stream.on('data', message => waiting.push(message))
  while (mine === generation) {
    if (waiting.length === 0) await sleep(20)
    else await copy(waiting.splice(0, 100))
  }
  await stream.close()
}
