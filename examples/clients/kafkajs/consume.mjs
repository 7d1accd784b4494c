// Read as a member of a group, and remember how far: consume.mjs ADDRESS TOPIC GROUP COUNT
import { Kafka, logLevel } from 'kafkajs'

const [address, topic, group, count] = process.argv.slice(2)
const kafka = new Kafka({ brokers: [address], logLevel: logLevel.ERROR })
const consumer = kafka.consumer({ groupId: group })
await consumer.connect()
await consumer.subscribe({ topics: [topic], fromBeginning: true })
let seen = 0
await new Promise(resolve => consumer.run({
  eachMessage: async ({ message }) => {
    if (seen === Number(count)) return
    console.log(message.value.toString())
    if (++seen === Number(count)) resolve()
  }
}))
await consumer.disconnect()
