// Client in JavaScript: each line of its input names a case, it plays the case and prints a line.
// "CASE ADDRESS [ARGUMENT…]" is answered by "ok [NOTE]" or "failed REASON".
'use strict';

const fs = require('fs');
const readline = require('readline');
const grpc = require('@grpc/grpc-js');

const DETAILS = 'kein Wasser: 5 % Öl, 水';
const TEXT = 'text, with = and ;';
const SECONDS = 50;
const GZIP = 2;
const asIs = (value) => value;
let keys = 0;

function check(holds, ...seen) {
  if (!holds) throw new Error(seen.map(String).join(' '));
}

const due = (seconds = SECONDS) => ({ deadline: Date.now() + seconds * 1000 });

class Peer {
  constructor(address, credentials, options) {
    this.client = new grpc.Client(address, credentials, { 'grpc.max_receive_message_length': -1, ...options });
    this.key = `node${process.pid}-${keys++}`;
  }

  // An answer, with its headers and trailers.
  unary(name, request = Buffer.alloc(0), { metadata = new grpc.Metadata(), options = due(), begun = asIs } = {}) {
    return new Promise((resolve, reject) => {
      let trailers;
      let headers;
      const call = this.client.makeUnaryRequest(`/peers.Peers/${name}`, asIs, asIs, request, metadata, options, (error, answer) => {
        // The status event comes behind the answer.
        if (error) reject(error);
        else setImmediate(() => resolve({ answer, headers, trailers }));
      });
      call.on('metadata', (found) => { headers = found; });
      call.on('status', (found) => { trailers = found.metadata; });
      begun(call);
    });
  }

  async call(name, request) {
    return (await this.unary(name, Buffer.from(request))).answer.toString();
  }

  async failure(name, request, more) {
    try {
      await this.unary(name, request, more);
    } catch (error) {
      return error;
    }
    throw new Error('no error');
  }

  chat(name, ...first) {
    const stream = this.client.makeBidiStreamRequest(`/peers.Peers/${name}`, asIs, asIs, new grpc.Metadata(), due());
    const answers = [];
    let wake = asIs;
    const add = (found) => { answers.push(found); wake(); };
    stream.on('data', add);
    stream.on('error', add);
    stream.on('end', () => add(null));
    for (const each of first) stream.write(each);
    // The next answer; an Error, or null at the end.
    const next = async () => {
      while (!answers.length) await new Promise((resolve) => { wake = resolve; });
      return answers.shift();
    };
    const rest = async () => {
      const found = [];
      for (let each = await next(); each !== null; each = await next()) {
        check(!(each instanceof Error), each);
        found.push(each);
      }
      return found;
    };
    // Sends no further requests.
    const half = () => { stream.end(); return chat; };
    const chat = { stream, next, rest, half };
    return chat;
  }
}

async function unary(peer) {
  for (const length of [0, 1, 16379, 70000]) {
    check((await peer.unary('Echo', Buffer.alloc(length))).answer.length === length, length);
  }
}

async function clientStream(peer) {
  for (const [count, length] of [[0, 0], [1, 10], [1000, 100], [3, 200000]]) {
    const join = peer.chat('Join', ...Array(count).fill(Buffer.alloc(length)));
    const answers = await join.half().rest();
    check(String(answers[0]) === `${count} ${count * length}`, answers);
  }
}

async function serverStream(peer) {
  for (const [count, length] of [[0, 0], [1, 10], [10000, 100], [3, 200000]]) {
    const answers = await peer.chat('Split', Buffer.from(`${count} ${length}`)).half().rest();
    check(answers.length === count && answers.every((each) => each.length === length), answers.length);
  }
}

async function bidirectional(peer) {
  const chat = peer.chat('Chat');
  for (let number = 0; number < 100; number++) {
    chat.stream.write(Buffer.from(String(number)));
    check(String(await chat.next()) === String(number), number);
  }
  check((await chat.half().rest()).length === 0);
}

async function long(peer, length) {
  const body = Buffer.alloc(Number(length), '0123456789abcdef');
  check((await peer.unary('Echo', body)).answer.equals(body), 'unary');
  const answers = await peer.chat('Chat', body, body).half().rest();
  check(answers.length === 2 && answers.every((each) => each.equals(body)), 'chat');
}

async function concurrent(peer, count, gathered) {
  const calls = Array.from({ length: Number(count) }, () => peer.call('Gather', `${peer.key} ${gathered}`));
  const found = new Set(await Promise.all(calls));
  return found.size === 1 ? '1 connection' : `${found.size} connections`;
}

async function metadata(peer) {
  const bytes = Buffer.from(Array.from({ length: 256 }, (_, at) => at));
  const sent = new grpc.Metadata();
  sent.add('x-text', TEXT);
  sent.add('x-bytes-bin', bytes);
  sent.add('x-bytes-bin', Buffer.alloc(0));
  sent.add('x-two', '1');
  sent.add('x-two', '2');
  const { headers, trailers } = await peer.unary('Metadata', undefined, { metadata: sent });
  for (const seen of [headers, trailers]) {
    check(seen.get('x-text').join() === TEXT, seen.get('x-text'));
    const values = seen.get('x-bytes-bin');
    check(values.length === 2 && values[0].equals(bytes) && values[1].length === 0, values.map((each) => each.length));
    // Node's HTTP/2 may join the values of one name.
    check(seen.get('x-two').join().replace(' ', '') === '1,2', seen.get('x-two'));
  }
}

function notFound(error) {
  check(error && error.code === grpc.status.NOT_FOUND, error);
  check(error.details === DETAILS, error.details);
  check(error.metadata.get('x-reason').join() === 'dry', error.metadata.get('x-reason'));
  check(error.metadata.get('x-reason-bin')[0].equals(Buffer.from([0, 0xff, 0x2c, 0x80])), 'x-reason-bin');
}

async function error(peer) {
  notFound(await peer.failure('Fail'));
  const late = peer.chat('FailLate', Buffer.from('x')).half();
  check(String(await late.next()) === 'x');
  let end = await late.next();
  if (end === null) end = await late.next();
  notFound(end);
}

async function deadline(peer) {
  const left = Number((await peer.unary('Remaining', undefined, { options: due(20) })).answer);
  check(left > 15000 && left < 21000, left);
  const failed = await peer.failure('Wait', Buffer.from(peer.key), { options: due(1) });
  check(failed.code === grpc.status.DEADLINE_EXCEEDED, failed);
  check(await peer.call('Ended', peer.key) === 'yes', 'the handler goes on');
}

async function cancel(peer) {
  const key = `${peer.key}u`;
  let waiting;
  const ended = peer.failure('Wait', Buffer.from(key), { begun: (call) => { waiting = call; } });
  check(await peer.call('Begun', key) === 'yes', 'the unary handler does not begin');
  waiting.cancel();
  check((await ended).code === grpc.status.CANCELLED);
  check(await peer.call('Ended', key) === 'yes', 'the unary handler goes on');
  const chat = peer.chat('WaitStream', Buffer.from(`${peer.key}s`));
  check(String(await chat.next()) === `${peer.key}s`);
  chat.stream.cancel();
  check(await peer.call('Ended', `${peer.key}s`) === 'yes', "the stream's handler goes on");
}

async function leave(peer) {
  await peer.call('Echo', '');
  const leaving = peer.chat('Leave', Buffer.from('x')).half();
  await leaving.next();
  let isOver = false;
  const caller = async () => {
    while (!isOver) await peer.call('Echo', 'later');
  };
  const callers = Promise.all(Array.from({ length: 8 }, caller));
  const done = leaving.next().then(() => leaving.rest());
  await Promise.race([callers, done]);
  isOver = true;
  await callers;
  await done;
  await peer.call('Echo', '');
}

async function keepalive(peer, _pause, quiet) {
  const silent = peer.chat('Quiet', Buffer.from(quiet)).half();
  const first = String(await silent.next());
  check(String(await silent.next()) === first);
  check(await peer.call('Gather', `${peer.key}k 1`) === first, 'reconnected');
}

async function unknownMethod(peer) {
  const failed = await peer.failure('Nothing');
  check(failed.code === grpc.status.UNIMPLEMENTED && failed.details.includes('Nothing'), failed);
  await peer.call('Echo', '');
}

async function tooLong(peer, length) {
  const failed = await peer.failure('Echo', Buffer.alloc(Number(length)));
  check(failed.code === grpc.status.RESOURCE_EXHAUSTED && /\d/.test(failed.details), failed);
  const join = peer.chat('Join', Buffer.from('short'), Buffer.alloc(Number(length)));
  let end = await join.next();
  if (end === null) end = await join.next();
  check(end.code === grpc.status.RESOURCE_EXHAUSTED, end);
  await peer.call('Echo', '');
}

async function gzip(peer) {
  const failed = await peer.failure('Echo', Buffer.alloc(10000));
  check(failed.code === grpc.status.UNIMPLEMENTED && failed.details.includes('compress'), failed);
}

async function allKinds(peer) {
  for (const each of [unary, clientStream, serverStream, bidirectional]) await each(peer);
  await long(peer, 1 << 20);
}

const CASES = {
  unary, 'client-stream': clientStream, 'server-stream': serverStream, bidirectional, long, concurrent,
  metadata, error, deadline, cancel, leave, keepalive, 'unknown-method': unknownMethod, 'too-long': tooLong,
  gzip, tls: allKinds,
};

async function play([name, address, ...given]) {
  let credentials = grpc.credentials.createInsecure();
  const options = {};
  if (name === 'tls') credentials = grpc.credentials.createSsl(fs.readFileSync(given[0]));
  if (name === 'gzip') options['grpc.default_compression_algorithm'] = GZIP;
  if (name === 'keepalive') {
    options['grpc.keepalive_time_ms'] = Number(given[0]);
    options['grpc.keepalive_timeout_ms'] = 5000;
  }
  const peer = new Peer(address, credentials, options);
  try {
    const note = await CASES[name](peer, ...given);
    return `ok ${note || ''}`.trim();
  } catch (failure) {
    console.error(failure);
    return `failed ${failure}`.replaceAll('\n', ' ');
  } finally {
    peer.client.close();
  }
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    console.log(await play(line.split(' ')));
  }
  process.exit(0);
}

main();
