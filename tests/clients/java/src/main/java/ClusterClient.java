// JedisCluster, unchanged, against the cluster at $HEADWATER_CLUSTER, also while the node of process $HEADWATER_CLUSTER_VICTIM is killed.
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.exceptions.JedisException;

class ClusterClient {
    // What does not come within this does not come.
    static final long PATIENCE = 180_000;

    // Does it again where it fails: a shard may have no owner for some seconds.
    static <T> T eventually(Callable<T> act) throws Exception {
        long end = System.currentTimeMillis() + PATIENCE;
        while (true) {
            try {
                return act.call();
            } catch (JedisException why) {
                if (System.currentTimeMillis() > end) throw why;
                Thread.sleep(50);
            }
        }
    }

    // Plain keys, and keys of a table with a tag, which this client takes to the owner of their slot.
    static String key(int number) {
        return number % 2 == 0 ? "key" + number : "p|{b" + number + "}|1";
    }

    static void write(JedisCluster client, int from, int to) throws Exception {
        for (int number = from; number < to; number++) {
            String key = key(number), value = String.valueOf(number);
            Client.same(eventually(() -> client.set(key, value)), "OK");
        }
    }

    static void read(JedisCluster client, int to) throws Exception {
        for (int number = 0; number < to; number++) {
            String key = key(number);
            Client.same(eventually(() -> client.get(key)), String.valueOf(number));
        }
    }

    static void run(String nodes, long victim) throws Exception {
        Set<HostAndPort> all = Stream.of(nodes.split(",")).map(HostAndPort::from).collect(Collectors.toSet());
        try (var client = new JedisCluster(all)) {
            write(client, 0, 100);
            read(client, 100);
            ProcessHandle.of(victim).orElseThrow().destroyForcibly();
            write(client, 100, 200);
            read(client, 200);
        }
    }
}
