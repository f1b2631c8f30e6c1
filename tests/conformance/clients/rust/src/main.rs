//! RocketMQ's Rust client, told by lines of JSON what to do (see client_process.py).

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};

struct Reader {
    consumer: SimpleConsumer,
    topic: String,
    filter: FilterExpression,
}

#[derive(Default)]
struct Clients {
    producers: HashMap<String, Producer>,
    readers: HashMap<String, Reader>,
    messages: HashMap<String, MessageView>,
}

type Answer = Result<Value, Box<dyn std::error::Error>>;

fn text<'a>(given: &'a Value, name: &str) -> &'a str {
    given[name].as_str().unwrap_or_default()
}

fn say(kind: &str, what: &Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{kind} {what}").and_then(|()| out.flush()).expect("our reader is there");
}

fn view(message: &MessageView) -> Value {
    json!({
        "id": message.message_id(),
        "topic": message.topic(),
        "body": String::from_utf8_lossy(message.body()),
        "tag": message.tag(),
        "keys": message.keys(),
        "properties": message.properties(),
        "group": message.message_group(),
        "attempt": message.delivery_attempt(),
    })
}

fn options(given: &Value) -> ClientOption {
    let mut options = ClientOption::default();
    options.set_access_url(text(given, "endpoint"));
    options.set_enable_tls(given["tls"].as_bool().unwrap_or(false));
    // How long to wait stays at its 40 s: with less RocketMQ's proxy refuses, as its deadline is no longer.
    if let Some(key) = given["access_key"].as_str() {
        options.set_access_key(key);
        options.set_secret_key(text(given, "secret_key"));
    }
    options
}

impl Clients {
    async fn producer(&mut self, given: &Value) -> Answer {
        let mut option = ProducerOption::default();
        let topics: Vec<&str> = given["topics"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        option.set_topics(topics);
        let mut producer = if let Some(resolution) = given["check"].as_str() {
            let commits = resolution == "commit";
            Producer::new_transaction_producer(
                option,
                options(given),
                Box::new(move |_, message| {
                    let mut seen = view(&message);
                    seen["event"] = json!("check");
                    say("*", &seen);
                    if commits { TransactionResolution::COMMIT } else { TransactionResolution::ROLLBACK }
                }),
            )?
        } else {
            Producer::new(option, options(given))?
        };
        producer.start().await?;
        self.producers.insert(text(given, "name").into(), producer);
        Ok(json!({}))
    }

    async fn send(&self, given: &Value) -> Answer {
        if !given["priority"].is_null() {
            return Ok(json!({"unsupported": "priority"}));
        }
        let producer = &self.producers[text(given, "name")];
        let (topic, body) = (text(given, "topic"), text(given, "body").as_bytes().to_vec());
        let mut builder = if given["end"].is_string() {
            MessageBuilder::transaction_message_builder(topic, body)
        } else if let Some(group) = given["group"].as_str() {
            MessageBuilder::fifo_message_builder(topic, body, group)
        } else if let Some(delay_ms) = given["delay_ms"].as_u64() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
            // Whole seconds is all that it takes.
            let at = now + Duration::from_millis(delay_ms + 999);
            MessageBuilder::delay_message_builder(topic, body, at.as_secs() as i64)
        } else {
            MessageBuilder::builder().set_topic(topic).set_body(body)
        };
        if let Some(tag) = given["tag"].as_str() {
            builder = builder.set_tag(tag);
        }
        if let Some(keys) = given["keys"].as_array() {
            builder = builder.set_keys(keys.iter().filter_map(Value::as_str).collect());
        }
        if let Some(properties) = given["properties"].as_object() {
            let pairs = properties.iter().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
            builder = builder.set_properties(pairs.collect::<HashMap<_, _>>());
        }
        let message = builder.build()?;
        match given["end"].as_str() {
            None => Ok(json!({"id": producer.send(message).await?.message_id()})),
            Some(end) => {
                let transaction = producer.send_transaction_message(message).await?;
                let answer = json!({"id": transaction.message_id()});
                match end {
                    "commit" => transaction.commit().await?,
                    "rollback" => transaction.rollback().await?,
                    _ => {}
                }
                Ok(answer)
            }
        }
    }

    async fn simple(&mut self, given: &Value) -> Answer {
        let mut option = SimpleConsumerOption::default();
        option.set_topics(vec![text(given, "topic")]);
        option.set_consumer_group(text(given, "group"));
        let mut consumer = SimpleConsumer::new(option, options(given))?;
        consumer.start().await?;
        let filter = match given["sql"].as_str() {
            Some(sql) => FilterExpression::new(FilterType::Sql, sql),
            None => FilterExpression::new(FilterType::Tag, given["tag"].as_str().unwrap_or("*")),
        };
        let reader = Reader { consumer, topic: text(given, "topic").into(), filter };
        self.readers.insert(text(given, "name").into(), reader);
        Ok(json!({}))
    }

    async fn receive(&mut self, given: &Value) -> Answer {
        let reader = &self.readers[text(given, "name")];
        let invisible = Duration::from_millis(given["invisible_ms"].as_u64().unwrap_or(10_000));
        let batch = given["max"].as_i64().unwrap_or(32) as i32;
        let messages = reader.consumer.receive_with(&reader.topic, &reader.filter, batch, invisible).await?;
        let mut found = Vec::new();
        for message in messages {
            let handle = format!("m{}", self.messages.len());
            let mut seen = view(&message);
            seen["handle"] = json!(handle);
            found.push(seen);
            self.messages.insert(handle, message);
        }
        Ok(json!({"messages": found}))
    }

    async fn done(&mut self, given: &Value) -> Answer {
        let name = text(given, "name");
        match text(given, "do") {
            // The crate's functions that set a namespace are private.
            "producer" | "simple" if given["namespace"].is_string() => Ok(json!({"unsupported": "a namespace"})),
            "producer" => self.producer(given).await,
            "simple" => self.simple(given).await,
            "send" => self.send(given).await,
            "receive" => self.receive(given).await,
            "ack" => {
                self.readers[name].consumer.ack(&self.messages[text(given, "handle")]).await?;
                Ok(json!({}))
            }
            "stop" => {
                if let Some(producer) = self.producers.remove(name) {
                    producer.shutdown().await?;
                } else if let Some(reader) = self.readers.remove(name) {
                    reader.consumer.shutdown().await?;
                }
                Ok(json!({}))
            }
            other => Ok(json!({"unsupported": other})),
        }
    }
}

#[tokio::main]
async fn main() {
    let mut clients = Clients::default();
    for line in std::io::stdin().lock().lines() {
        let given = serde_json::from_str(&line.expect("lines of text")).expect("lines of JSON");
        let answer = clients.done(&given).await.unwrap_or_else(|failure| json!({"error": failure.to_string()}));
        say(">", &answer);
    }
    std::process::exit(0);
}
