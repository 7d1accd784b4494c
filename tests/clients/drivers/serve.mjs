// One client library, asked by a test: a JSON object for each line of stdin, and one for each answer.
// node serve.mjs DRIVER — where DRIVER.mjs exports what is asked for by name.
import { createInterface } from 'node:readline'

const driver = await import(`./${process.argv[2]}.mjs`)
const objects = new Map()
const encode = (_key, value) => (typeof value === 'bigint' ? value.toString() : value)

async function answer ({ object, method, args }) {
  if (object) return objects.get(object)[method](...args)
  const made = await driver[method](...args)
  if (typeof made?.close !== 'function') return made
  objects.set(objects.size + 1, made)
  return { object: objects.size }
}

function told (error) {
  const all = [error, ...(error.errors ?? []), error.cause].filter(Boolean)
  const text = all.map(each => `${each.name} ${each.type ?? each.apiId ?? each.code ?? ''} ${each.message}`).join(' | ')
  const fenced = /INVALID_PRODUCER_EPOCH|PRODUCER_FENCED|ERR__FENCED|fenced by|newer (producer )?epoch/i.test(text) ||
    driver.fenced?.(all)
  return { text, fenced: Boolean(fenced) }
}

// A client that gives up on its broker in the background must not end the others.
process.on('unhandledRejection', error => process.stderr.write(`unhandled: ${error?.stack}\n`))
for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line)
  answer(request).then(
    value => ({ id: request.id, value: value ?? null }),
    error => ({ id: request.id, error: told(error) })
  ).then(reply => process.stdout.write(JSON.stringify(reply, encode) + '\n'))
}
process.exit(0)
