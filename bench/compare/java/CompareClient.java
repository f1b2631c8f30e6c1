import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;

/**
 * A Java client's side of `make compare`: what clients/protocol.py is for Python.
 *
 * What waits in a task there, waits in a thread here.
 */
abstract class CompareClient {
    static final int BODY_BYTES = 100;
    static final int TASKS = 64;
    static final int LIST_MESSAGES = 1000;
    static final int LOOK_MESSAGES = 500;
    static final int HANDLED_LIST_MESSAGES = 64;
    private static final long ARRIVAL_MS_MAX = 60_000;
    // Of a paced run: what comes first is not counted.
    private static final double WARM_SHARE = 0.2;
    private final PrintStream answers = System.out;

    /** What was done: how many messages, how long that took, and nanoseconds of single ones. */
    record Work(long messages, double seconds, List<Long> waits) {
        Work(long messages, long began) {
            this(messages, (System.nanoTime() - began) / 1e9, List.of());
        }

        String told() {
            StringBuilder said = new StringBuilder("messages=" + messages + " seconds=" + seconds);
            if (!waits.isEmpty()) {
                List<Long> ordered = new ArrayList<>(waits);
                Collections.sort(ordered);
                said.append(" p50=").append(share(ordered, 0.5)).append(" p99=").append(share(ordered, 0.99));
            }
            return said.toString();
        }

        private static double share(List<Long> ordered, double share) {
            return ordered.get(Math.min((int) (ordered.size() * share), ordered.size() - 1)) / 1e9;
        }
    }

    /** The client has no such way of working. */
    static final class NoSuchWay extends Exception {
        NoSuchWay(String reason) {
            super(reason);
        }
    }

    /** Counts what listeners get, from the first message until it is enough. */
    static final class Arrivals {
        private final AtomicLong count = new AtomicLong();
        private final long stored;
        private final double seconds;
        private volatile long began;
        private volatile Work work;

        Arrivals(long stored, double seconds) {
            this.stored = stored;
            this.seconds = seconds;
        }

        void add(long more) {
            long now = count.addAndGet(more);
            if (now == more) {
                began = System.nanoTime();
            }
            if (work == null && began != 0 && (now >= stored || now / LOOK_MESSAGES != (now - more) / LOOK_MESSAGES)) {
                Work found = new Work(now, began);
                if (found.seconds() >= seconds || now >= stored) {
                    work = found;
                }
            }
        }

        Work await() throws Exception {
            until(() -> work != null, (long) (seconds * 1000) + ARRIVAL_MS_MAX);
            return work;
        }
    }

    abstract void connect(String address) throws Exception;

    abstract void makeTopics(Map<String, Integer> queues) throws Exception;

    /** Send one message, without lingering, and return when it is stored; many threads do. */
    abstract void send(String topic, byte[] body) throws Exception;

    /** Have a consumer group of its own call `note` with each body of a topic, from the first. */
    abstract AutoCloseable listen(String topic, Consumer<byte[]> note) throws Exception;

    Work produceEach(String topic, int bytes, double seconds) throws Exception {
        throw new NoSuchWay("not measured");
    }

    Work produceLists(String topic, int bytes, double seconds) throws Exception {
        throw new NoSuchWay("its client sends a message a call");
    }

    Work consumeLists(String topic, long stored, double seconds) throws Exception {
        throw new NoSuchWay("not measured");
    }

    Work push(String topic, long stored, double seconds, int list) throws Exception {
        throw new NoSuchWay("Kafka's consumers are polled");
    }

    void serve() throws Exception {
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String said;
            try {
                Work done = work(line.split(" "));
                said = "> " + (done == null ? "" : done.told());
            } catch (NoSuchWay reason) {
                said = "- " + reason.getMessage();
            } catch (Throwable failure) {
                failure.printStackTrace();
                said = "! " + failure.toString().replaceAll("\\s+", " ");
            }
            answers.println(said);
            answers.flush();
        }
        System.exit(0);
    }

    private Work work(String[] words) throws Exception {
        Map<String, String> given = new LinkedHashMap<>();
        for (int at = 1; at < words.length; at++) {
            int equals = words[at].indexOf('=');
            given.put(words[at].substring(0, equals), words[at].substring(equals + 1));
        }
        String topic = given.get("topic");
        double seconds = Double.parseDouble(given.getOrDefault("seconds", "0"));
        int bytes = Integer.parseInt(given.getOrDefault("bytes", "0"));
        long stored = Long.parseLong(given.getOrDefault("stored", "0"));
        switch (words[0]) {
            case "connect":
                connect(given.get("address"));
                return null;
            case "make_topics":
                Map<String, Integer> queues = new LinkedHashMap<>();
                given.forEach((name, count) -> queues.put(name, Integer.valueOf(count)));
                makeTopics(queues);
                return null;
            case "first": return first(topic);
            case "produce_each": return produceEach(topic, bytes, seconds);
            case "produce_lists": return produceLists(topic, bytes, seconds);
            case "consume_lists": return consumeLists(topic, stored, seconds);
            case "push_each": return push(topic, stored, seconds, 1);
            case "push_lists": return push(topic, stored, seconds, HANDLED_LIST_MESSAGES);
            case "single": return threads(topic, seconds, 1);
            case "tasks": return threads(topic, seconds, TASKS);
            case "paced": return paced(topic, seconds, Double.parseDouble(given.get("rate")));
            case "consume_columns":
            case "consume_each": throw new NoSuchWay("it hands out lists of objects");
            case "connections": throw new NoSuchWay("each of its producers has several connections");
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    private Work first(String topic) throws Exception {
        AtomicLong count = new AtomicLong();
        long began = System.nanoTime();
        try (AutoCloseable listener = listen(topic, body -> count.incrementAndGet())) {
            send(topic, new byte[BODY_BYTES]);
            until(() -> count.get() > 0, ARRIVAL_MS_MAX);
            return new Work(1, began);
        }
    }

    private Work threads(String topic, double seconds, int count) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(count);
        byte[] body = new byte[BODY_BYTES];
        long began = System.nanoTime();
        long end = began + (long) (seconds * 1e9);
        Callable<List<Long>> sending = () -> {
            List<Long> waits = new ArrayList<>();
            for (long before = System.nanoTime(); before < end; before = System.nanoTime()) {
                send(topic, body);
                waits.add(System.nanoTime() - before);
            }
            return waits;
        };
        List<Long> waits = new ArrayList<>();
        try {
            for (Future<List<Long>> each : threads.invokeAll(Collections.nCopies(count, sending))) {
                waits.addAll(each.get());
            }
        } finally {
            threads.shutdown();
        }
        return new Work(waits.size(), (System.nanoTime() - began) / 1e9, waits);
    }

    /** A body with when it was due: from the call of send, what this client is late by would not be seen. */
    private static byte[] paced(long due) {
        return ByteBuffer.allocate(BODY_BYTES).putLong(due).array();
    }

    private Work paced(String topic, double seconds, double rate) throws Exception {
        List<Long> waits = Collections.synchronizedList(new ArrayList<>());
        int count = (int) (rate * seconds);
        ExecutorService threads = Executors.newFixedThreadPool(TASKS);
        try (AutoCloseable listener = listen(topic, body -> waits.add(System.nanoTime() - ByteBuffer.wrap(body).getLong()))) {
            send(topic, paced(System.nanoTime()));
            until(() -> !waits.isEmpty(), ARRIVAL_MS_MAX);
            List<Future<?>> sent = new ArrayList<>();
            long began = System.nanoTime();
            for (int number = 0; number < count; number++) {
                long due = began + (long) (number * 1e9 / rate);
                for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                    LockSupport.parkNanos(left);
                }
                sent.add(threads.submit(() -> {
                    send(topic, paced(due));
                    return null;
                }));
            }
            for (Future<?> each : sent) {
                each.get();
            }
            until(() -> waits.size() > count, ARRIVAL_MS_MAX);
            double elapsed = (System.nanoTime() - began) / 1e9;
            return new Work(count, elapsed, new ArrayList<>(waits.subList(1 + (int) (count * WARM_SHARE), count + 1)));
        } finally {
            threads.shutdown();
        }
    }

    /** Wait until something is so. */
    static void until(Callable<Boolean> isSo, long millisecondsMax) throws Exception {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millisecondsMax);
        while (!isSo.call()) {
            if (System.nanoTime() > end) {
                throw new IllegalStateException("it did not come in " + millisecondsMax + " ms");
            }
            Thread.sleep(5);
        }
    }
}
