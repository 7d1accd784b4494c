// Write greetings: produce.mjs ADDRESS TOPIC COUNT
import { Kafka, logLevel } from 'kafkajs'

const [address, topic, count] = process.argv.slice(2)
const kafka = new Kafka({ brokers: [address], logLevel: logLevel.ERROR })
const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
await producer.connect()
const messages = Array.from({ length: Number(count) }, (_, number) => ({ key: `${number}`, value: `hello ${number}` }))
await producer.send({ topic, messages })
await producer.disconnect()
console.log(`wrote ${count}`)
