"""Report about a drained broker: messages that are still needed on it."""

from collections import Counter

from rockoon_broker.broker import DRAINED, Broker
from rockoon_broker.topics.served_topics import GIVEN_UP
from rockoon_format.names import is_system_topic
from rockoon_proto.v1 import broker_pb2 as pb


async def describe_drain(broker: Broker) -> pb.DescribeDrainReply:
    """Return the messages of a broker that readers, delays and transactions still need.

    Consumers return failed messages before they commit, and due messages move from one number to
    the other; both append to the log. So the numbers are of one moment if the log has not grown.
    """
    store, pending = broker.store, broker.pending
    end = store.appended_end
    reading = await broker.unread.reading(end)
    topics = Counter[str]()
    for topic, queue_id in store.queues():
        if not is_system_topic(topic) or topic == GIVEN_UP.name:
            topics[topic] += store.max_offset(topic, queue_id) - store.min_offset(topic, queue_id)
    served = broker.topics.table.topics
    return pb.DescribeDrainReply(
        drained=broker.settings.drained,
        closed=store.closed_reason == DRAINED,
        settled=store.appended_end == end == store.visible_end,
        unread_messages=reading.messages,
        unread=[
            pb.UnreadByReader(reader=each.group, queue=each.queue, messages=each.messages)
            for each in reading.unread
        ],
        unknown_because=reading.unknown_because,
        delayed=len(pending.delays),
        transactions=len(pending.transactions),
        topics=[
            pb.StoredMessages(
                topic=topic,
                messages=count,
                compacted=topic in served and served[topic].compacted,
            )
            for topic, count in sorted(topics.items())
            if count > 0
        ],
    )
