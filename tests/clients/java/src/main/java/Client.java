// Jedis, unchanged, against the server at $HEADWATER_ADDRESS, in RESP2 and RESP3; then `Items`. `ClusterClient` alone, where there is $HEADWATER_CLUSTER.
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Objects;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.SetParams;

public class Client {
    static final String TIMELINE =
        "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";

    static ProtocolCommand command(String name) {
        return () -> name.getBytes(StandardCharsets.UTF_8);
    }

    static void same(Object found, Object wanted) {
        if (!Objects.equals(found, wanted)) {
            throw new AssertionError(found + " instead of " + wanted);
        }
    }

    static void run(HostAndPort address, RedisProtocol protocol) {
        var config = DefaultJedisClientConfig.builder().protocol(protocol).build();
        try (Jedis jedis = new Jedis(address, config)) {
            jedis.flushAll();
            same(jedis.set("a", "1", SetParams.setParams().ex(60)), "OK");
            same(jedis.incr("a"), 2L);
            same(jedis.get("nothing"), null);
            Transaction transaction = jedis.multi();
            transaction.incrBy("n", 5);
            transaction.get("n");
            same(transaction.exec(), List.of(5L, "5"));
            jedis.sendCommand(command("JOIN.ADD"), "timeline", TIMELINE, "REPLACE");
            jedis.mset("s|ann|bob", "1", "p|bob|0100", "Hi");
            same(jedis.get("t|ann|0100|bob"), "Hi");
            var values = (List<?>) jedis.sendCommand(command("PREFIX"), "t|ann|", "VALUES");
            same(new String((byte[]) values.get(0), StandardCharsets.UTF_8), "Hi");
            try {
                jedis.set("t|ann|0200|bob", "mine");
                throw new AssertionError("a maintained key was written");
            } catch (JedisDataException refusal) {
                same(refusal.getMessage().startsWith("JOINED "), true);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        var nodes = System.getenv("HEADWATER_CLUSTER");
        if (nodes != null) {
            ClusterClient.run(nodes, Long.parseLong(System.getenv("HEADWATER_CLUSTER_VICTIM")));
            System.out.println("1 passed, 0 failed");
            return;
        }
        var address = HostAndPort.from(System.getenv("HEADWATER_ADDRESS"));
        run(address, RedisProtocol.RESP2);
        run(address, RedisProtocol.RESP3);
        Items.run(System.getenv("HEADWATER_MEMCACHED"));
        System.out.println("3 passed, 0 failed");
    }
}
