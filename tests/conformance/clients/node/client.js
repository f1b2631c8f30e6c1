// rocketmq-client-nodejs, told by lines of JSON what to do (see client_process.py).
'use strict';

const readline = require('node:readline');
const {
  ConsumeResult, FilterExpression, LitePushConsumerImpl, OffsetOption, Producer, PushConsumer, SimpleConsumer,
} = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } =
  require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const clients = new Map();
const messages = new Map();
const say = (kind, what) => process.stdout.write(`${kind} ${JSON.stringify(what)}\n`);
const logger = { info() {}, debug() {}, warn: console.error, error: console.error };

const view = message => ({
  id: message.messageId,
  topic: message.topic,
  body: message.body.toString(),
  tag: message.tag || null,
  keys: message.keys,
  properties: Object.fromEntries(message.properties),
  group: message.messageGroup || null,
  lite: message.liteTopic ?? null,
  priority: message.priority ?? null,
  attempt: message.deliveryAttempt,
});

const options = given => ({
  endpoints: given.endpoint,
  namespace: given.namespace ?? '',
  sslEnabled: given.tls ?? false,
  sessionCredentials: given.access_key
    ? { accessKey: given.access_key, accessSecret: given.secret_key } : undefined,
  logger,
});

const subscriptions = given => new Map([[ given.topic,
  given.sql ? new FilterExpression(given.sql, FilterType.SQL) : new FilterExpression(given.tag ?? '*'),
]]);

// Fails with each message, or with those of one body, a number of times; or never returns.
function listener({ fails = 0, failing, holds }) {
  const seen = new Map();
  return { async consume(message) {
    seen.set(message.messageId, (seen.get(message.messageId) ?? 0) + 1);
    say('*', { event: 'message', ...view(message) });
    const workMs = message.properties.get('work_ms');
    if (workMs !== undefined) {
      await new Promise(resolve => setTimeout(resolve, Number(workMs)));
      say('*', { event: 'worked', ...view(message) });
    }
    if (holds) {
      await new Promise(() => {});
    }
    const concerned = failing === undefined || failing === message.body.toString();
    return concerned && seen.get(message.messageId) <= fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
  } };
}

async function started(name, client) {
  await client.startup();
  clients.set(name, client);
  return {};
}

const roles = {
  producer: given => started(given.name, new Producer({
    ...options(given),
    topics: given.topics,
    checker: given.check && { async check(message) {
      say('*', { event: 'check', ...view(message) });
      return TransactionResolution[given.check.toUpperCase()];
    } },
  })),
  simple: given => started(given.name, new SimpleConsumer({
    ...options(given), consumerGroup: given.group, awaitDuration: given.await_ms,
    subscriptions: subscriptions(given),
  })),
  push: given => started(given.name, new PushConsumer({
    ...options(given), consumerGroup: given.group, messageListener: listener(given),
    subscriptions: subscriptions(given),
  })),
  lite_push: given => started(given.name, new LitePushConsumerImpl({
    ...options(given), consumerGroup: given.group, bindTopic: given.topic,
    messageListener: listener(given), subscriptions: new Map(),
  })),
  async subscribe(given) {
    const place = given.first ? [ OffsetOption.MIN_OFFSET ] : [];
    await clients.get(given.name).subscribeLite(given.lite, ...place);
    return {};
  },
  async unsubscribe(given) {
    await clients.get(given.name).unsubscribeLite(given.lite);
    return {};
  },
  async send(given) {
    const message = {
      topic: given.topic,
      body: Buffer.from(given.body),
      tag: given.tag,
      keys: given.keys,
      properties: given.properties && new Map(Object.entries(given.properties)),
      messageGroup: given.group,
      delay: given.delay_ms,
      liteTopic: given.lite,
      priority: given.priority,
    };
    const producer = clients.get(given.name);
    let receipt;
    if (given.end) {
      const transaction = producer.beginTransaction();
      receipt = await producer.send(message, transaction);
      if (given.end !== 'none') {
        await transaction[given.end]();
      }
    } else {
      receipt = await producer.send(message);
    }
    return { id: receipt.messageId, recall: receipt.recallHandle };
  },
  async recall(given) {
    return { id: (await clients.get(given.name).recallMessage(given.topic, given.handle)).messageId };
  },
  async receive(given) {
    const found = await clients.get(given.name).receive(given.max, given.invisible_ms);
    return { messages: found.map(message => {
      const handle = `m${messages.size}`;
      messages.set(handle, message);
      return { handle, ...view(message) };
    }) };
  },
  async ack(given) {
    await clients.get(given.name).ack(messages.get(given.handle));
    return {};
  },
  async change(given) {
    await clients.get(given.name).changeInvisibleDuration(messages.get(given.handle), given.after_ms);
    return {};
  },
  async stop(given) {
    await clients.get(given.name).shutdown();
    return {};
  },
};

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const given = JSON.parse(line);
    let answer;
    try {
      answer = roles[given.do] ? await roles[given.do](given) : { unsupported: given.do };
    } catch (failure) {
      console.error(failure);
      answer = { error: String(failure) };
    }
    say('>', answer);
  }
  process.exit(0);
}

main();
