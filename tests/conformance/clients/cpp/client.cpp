// RocketMQ's C++ client, told by lines of JSON what to do (see client_process.py).

#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include "rocketmq/CredentialsProvider.h"
#include "rocketmq/ErrorCode.h"
#include "rocketmq/Logger.h"
#include "rocketmq/Producer.h"
#include "rocketmq/PushConsumer.h"
#include "rocketmq/SimpleConsumer.h"

using namespace ROCKETMQ_NAMESPACE;
using google::protobuf::Struct;
using google::protobuf::Value;
using std::string;
using Milliseconds = std::chrono::milliseconds;

static std::mutex saying;
static std::map<string, Producer> producers;
static std::map<string, SimpleConsumer> simples;
static std::map<string, PushConsumer> pushes;
static std::map<string, MessageConstSharedPtr> messages;

static void say(const string& kind, const Struct& what) {
  string line;
  google::protobuf::util::MessageToJsonString(what, &line);
  std::lock_guard<std::mutex> locked(saying);
  std::cout << kind << ' ' << line << std::endl;
}

static bool has(const Struct& given, const string& name) { return given.fields().count(name) != 0; }
static string text(const Struct& given, const string& name) {
  return has(given, name) ? given.fields().at(name).string_value() : "";
}
static double number(const Struct& given, const string& name) {
  return has(given, name) ? given.fields().at(name).number_value() : 0;
}
static bool flag(const Struct& given, const string& name) {
  return has(given, name) && given.fields().at(name).bool_value();
}
static std::vector<string> texts(const Struct& given, const string& name) {
  std::vector<string> found;
  if (has(given, name)) {
    for (const auto& each : given.fields().at(name).list_value().values()) found.push_back(each.string_value());
  }
  return found;
}
static void put(Struct& what, const string& name, const string& value) {
  (*what.mutable_fields())[name].set_string_value(value);
}
static void put_or_null(Struct& what, const string& name, const string& value) {
  value.empty() ? (*what.mutable_fields())[name].set_null_value({}) : put(what, name, value);
}

static Struct view(const Message& message) {
  Struct found;
  put(found, "id", message.id());
  put(found, "topic", message.topic());
  put(found, "body", message.body());
  put_or_null(found, "tag", message.tag());
  put_or_null(found, "group", message.group());
  auto* keys = (*found.mutable_fields())["keys"].mutable_list_value();
  for (const auto& key : message.keys()) keys->add_values()->set_string_value(key);
  auto* properties = (*found.mutable_fields())["properties"].mutable_struct_value();
  for (const auto& each : message.properties()) put(*properties, each.first, each.second);
  auto& priority = (*found.mutable_fields())["priority"];
  message.priority() < 0 ? priority.set_null_value({}) : priority.set_number_value(message.priority());
  (*found.mutable_fields())["attempt"].set_number_value(message.extension().delivery_attempt);
  return found;
}

static void check(const std::error_code& ec) {
  if (ec) throw std::runtime_error(ec.category().name() + (" " + std::to_string(ec.value())) + ": " + ec.message());
}

static Configuration configuration(const Struct& given) {
  auto builder = Configuration::newBuilder();
  builder.withEndpoints(text(given, "endpoint")).withSsl(flag(given, "tls"));
  if (has(given, "namespace")) builder.withNamespace(text(given, "namespace"));
  if (has(given, "access_key")) {
    builder.withCredentialsProvider(
        std::make_shared<StaticCredentialsProvider>(text(given, "access_key"), text(given, "secret_key")));
  }
  return builder.build();
}

static FilterExpression filter(const Struct& given) {
  if (has(given, "sql")) return FilterExpression(text(given, "sql"), ExpressionType::SQL92);
  return FilterExpression(has(given, "tag") ? text(given, "tag") : "*");
}

static void producer(const Struct& given) {
  auto builder = Producer::newBuilder();
  builder.withConfiguration(configuration(given)).withTopics(texts(given, "topics"));
  if (has(given, "check")) {
    const bool commits = text(given, "check") == "commit";
    builder.withTransactionChecker([commits](const Message& message) {
      auto seen = view(message);
      put(seen, "event", "check");
      say("*", seen);
      return commits ? TransactionState::COMMIT : TransactionState::ROLLBACK;
    });
  }
  producers.emplace(text(given, "name"), builder.build());
}

static Struct send(const Struct& given) {
  if (has(given, "lite")) {
    Struct answer;
    put(answer, "unsupported", "lite");
    return answer;
  }
  auto builder = Message::newBuilder();
  builder.withTopic(text(given, "topic")).withBody(text(given, "body"));
  if (has(given, "tag")) builder.withTag(text(given, "tag"));
  if (has(given, "keys")) builder.withKeys(texts(given, "keys"));
  if (has(given, "group")) builder.withGroup(text(given, "group"));
  if (has(given, "priority")) builder.withPriority(static_cast<std::int32_t>(number(given, "priority")));
  if (has(given, "properties")) {
    std::unordered_map<string, string> properties;
    for (const auto& each : given.fields().at("properties").struct_value().fields()) {
      properties[each.first] = each.second.string_value();
    }
    builder.withProperties(properties);
  }
  if (has(given, "delay_ms")) {
    const auto delay = Milliseconds(static_cast<long>(number(given, "delay_ms")));
    builder.availableAfter(std::chrono::system_clock::now() + delay);
  }
  auto& through = producers.at(text(given, "name"));
  std::error_code ec;
  SendReceipt receipt;
  const string end = text(given, "end");
  if (end.empty()) {
    receipt = through.send(builder.build(), ec);
    check(ec);
  } else {
    auto transaction = through.beginTransaction();
    receipt = through.send(builder.build(), ec, *transaction);
    check(ec);
    if (end == "commit" && !transaction->commit()) throw std::runtime_error("the commit failed");
    if (end == "rollback" && !transaction->rollback()) throw std::runtime_error("the rollback failed");
  }
  Struct answer;
  put(answer, "id", receipt.message_id);
  put(answer, "recall", receipt.recall_handle);
  return answer;
}

static Struct recall(const Struct& given) {
  std::error_code ec;
  string topic = text(given, "topic"), handle = text(given, "handle");
  const auto receipt = producers.at(text(given, "name")).recall(topic, handle, ec);
  check(ec);
  Struct answer;
  put(answer, "id", receipt.message_id);
  return answer;
}

static void simple(const Struct& given) {
  auto made = SimpleConsumer::newBuilder()
                  .withConfiguration(configuration(given))
                  .withGroup(text(given, "group"))
                  .withAwaitDuration(Milliseconds(static_cast<long>(number(given, "await_ms"))))
                  .subscribe(text(given, "topic"), filter(given))
                  .build();
  simples.emplace(text(given, "name"), std::move(made));
}

static Struct receive(const Struct& given) {
  std::error_code ec;
  std::vector<MessageConstSharedPtr> received;
  simples.at(text(given, "name"))
      .receive(static_cast<std::size_t>(number(given, "max")),
               Milliseconds(static_cast<long>(number(given, "invisible_ms"))), ec, received);
  // That there is nothing is an error to it.
  const bool is_empty = ec.value() == static_cast<int>(ErrorCode::NoContent) ||
                        ec.value() == static_cast<int>(ErrorCode::MessageNotFound);
  if (!is_empty) check(ec);
  Struct answer;
  auto* found = (*answer.mutable_fields())["messages"].mutable_list_value();
  for (const auto& message : received) {
    const string handle = "m" + std::to_string(messages.size());
    messages[handle] = message;
    auto seen = view(*message);
    put(seen, "handle", handle);
    *found->add_values()->mutable_struct_value() = seen;
  }
  return answer;
}

static void push(const Struct& given) {
  const double fails = number(given, "fails");
  const bool is_some = has(given, "failing"), holds = flag(given, "holds");
  const string failing = text(given, "failing");
  auto seen = std::make_shared<std::map<string, int>>();
  auto listener = [=](const Message& message) {
    auto event = view(message);
    put(event, "event", "message");
    say("*", event);
    while (holds) std::this_thread::sleep_for(std::chrono::hours(1));
    std::lock_guard<std::mutex> locked(saying);
    const int times = ++(*seen)[message.id()];
    const bool is_concerned = !is_some || failing == message.body();
    return is_concerned && times <= fails ? ConsumeResult::FAILURE : ConsumeResult::SUCCESS;
  };
  auto made = PushConsumer::newBuilder()
                  .withConfiguration(configuration(given))
                  .withGroup(text(given, "group"))
                  .withListener(listener)
                  .subscribe(text(given, "topic"), filter(given))
                  .build();
  pushes.emplace(text(given, "name"), std::move(made));
}

static Struct done(const Struct& given) {
  const string what = text(given, "do"), name = text(given, "name");
  std::error_code ec;
  Struct answer;
  if (what == "producer") {
    producer(given);
  } else if (what == "simple") {
    simple(given);
  } else if (what == "push") {
    push(given);
  } else if (what == "send") {
    return send(given);
  } else if (what == "recall") {
    return recall(given);
  } else if (what == "receive") {
    return receive(given);
  } else if (what == "ack") {
    simples.at(name).ack(*messages.at(text(given, "handle")), ec);
    check(ec);
  } else if (what == "change") {
    const auto& message = *messages.at(text(given, "handle"));
    string handle = message.extension().receipt_handle;
    simples.at(name).changeInvisibleDuration(
        message, handle, Milliseconds(static_cast<long>(number(given, "after_ms"))), ec);
    check(ec);
  } else if (what == "stop") {
    producers.erase(name);
    simples.erase(name);
    pushes.erase(name);
  } else {
    put(answer, "unsupported", what);
  }
  return answer;
}

int main() {
  getLogger().setConsoleLevel(Level::Error);
  string line;
  while (std::getline(std::cin, line)) {
    Struct given, answer;
    try {
      const auto parsed = google::protobuf::util::JsonStringToMessage(line, &given);
      if (!parsed.ok()) throw std::runtime_error(parsed.ToString());
      answer = done(given);
    } catch (const std::exception& failure) {
      put(answer, "error", failure.what());
    }
    say(">", answer);
  }
  std::quick_exit(0);
}
