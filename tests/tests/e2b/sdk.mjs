// The real JavaScript SDK of E2B on the double: what it expects of the platform must hold. Prints one line per step.

import assert from 'node:assert/strict'
import { pathToFileURL } from 'node:url'

const { AuthenticationError, CommandExitError, NotFoundError, Sandbox, TimeoutError } = await import(
  pathToFileURL(`${process.env.E2B_MODULE}/dist/index.mjs`).href
)

const step = (name) => console.log('step:', name)
const until = async (condition) => {
  const deadline = Date.now() + 30_000
  while (!(await condition())) {
    assert.ok(Date.now() < deadline, 'the condition did not come true')
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

const sandbox = await Sandbox.create()
assert.equal((await sandbox.getInfo()).state, 'running')
step('create')

const bytes = Uint8Array.from({ length: 256 }, (_, index) => index)
await sandbox.files.write('notes/a.bin', bytes.buffer)
assert.deepEqual(await sandbox.files.read('notes/a.bin', { format: 'bytes' }), bytes)
await assert.rejects(sandbox.files.read('absent'), NotFoundError)
step('files')

assert.equal((await sandbox.commands.run('id -u; pwd')).stdout, '1000\n/home/user\n')
assert.equal((await sandbox.commands.run('id -u', { user: 'root' })).stdout, '0\n')
const result = await sandbox.commands.run('echo $GREETING; echo bad >&2', { envs: { GREETING: 'hello' }, cwd: '/tmp' })
assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['hello\n', 'bad\n', 0])
await assert.rejects(sandbox.commands.run('exit 3'), (error) => error instanceof CommandExitError && error.exitCode === 3)
step('run')

const cat = await sandbox.commands.run('cat', { background: true, stdin: true, timeoutMs: 0 })
assert.ok((await sandbox.commands.list()).some((process) => process.pid === cat.pid))
await sandbox.commands.sendStdin(cat.pid, 'one\n')
const second = await sandbox.commands.connect(cat.pid, { timeoutMs: 0 })
await sandbox.commands.sendStdin(cat.pid, 'two\n')
await sandbox.commands.closeStdin(cat.pid)
assert.equal((await cat.wait()).stdout, 'one\ntwo\n')
assert.match((await second.wait()).stdout, /two\n$/)
step('input')

const script = 'while read line; do echo "got $line"; echo "$line" >> /tmp/read; done'
const detached = await sandbox.commands.run(script, { background: true, stdin: true, timeoutMs: 0 })
await detached.disconnect()
await sandbox.commands.sendStdin(detached.pid, 'lost\n')
await until(async () => (await sandbox.commands.run('cat /tmp/read 2>/dev/null; true')).stdout.includes('lost'))
const attached = await sandbox.commands.connect(detached.pid, { timeoutMs: 0 })
await sandbox.commands.sendStdin(detached.pid, 'kept\n')
await sandbox.commands.closeStdin(detached.pid)
assert.equal((await attached.wait()).stdout, 'got kept\n')
step('output is lost while detached')

const sleeper = await sandbox.commands.run('exec sleep 600', { background: true, timeoutMs: 0 })
const ended = sleeper.wait().catch(() => 'killed')
assert.equal(await sandbox.commands.kill(sleeper.pid), true)
assert.equal(await ended, 'killed')
assert.equal(await sandbox.commands.kill(sleeper.pid), false)
step('kill')

await assert.rejects(sandbox.commands.run('sleep 600', { timeoutMs: 1000 }), TimeoutError)
const began = Date.now()
await assert.rejects(sandbox.commands.run('exec sleep 601'), TimeoutError)
assert.ok(Date.now() - began < 30_000, "the SDK's default limit of 60 s is not on the double's clock")
step('time limit')

const survivor = await sandbox.commands.run('exec sleep 600', { background: true, timeoutMs: 0 })
survivor.wait().catch(() => 'cut')
await sandbox.pause()
assert.equal((await sandbox.getInfo()).state, 'paused')
const resumed = await Sandbox.connect(sandbox.sandboxId)
assert.equal((await resumed.getInfo()).state, 'running')
assert.ok((await resumed.commands.list()).some((process) => process.pid === survivor.pid))
await assert.rejects(sandbox.commands.list(), AuthenticationError)
step('pause and resume')

await assert.rejects(Sandbox.connect(resumed.sandboxId, { apiKey: `e2b_${'0'.repeat(40)}` }), AuthenticationError)
await assert.rejects(Sandbox.connect('iunknown'), NotFoundError)
await assert.rejects(Sandbox.connect(resumed.sandboxId, { apiKey: process.env.OTHER_API_KEY }), NotFoundError)
assert.equal(await resumed.kill(), true)
await assert.rejects(Sandbox.connect(resumed.sandboxId), NotFoundError)
step('keys and ids')
process.exit(0)
