// spymemcached, unchanged, against memcached's protocol at $HEADWATER_MEMCACHED.
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import net.spy.memcached.AddrUtil;
import net.spy.memcached.CASResponse;
import net.spy.memcached.MemcachedClient;

class Items {
    static void run(String address) throws Exception {
        System.setProperty("net.spy.log.LoggerImpl", "net.spy.memcached.compat.log.SLF4JLogger");
        var client = new MemcachedClient(AddrUtil.getAddresses(address));
        try {
            Client.same(client.flush().get(), true);
            Client.same(client.set("text", 0, "täxt").get(), true);
            Client.same(client.get("text"), "täxt");
            Client.same(client.get("nothing"), null);
            // Numbers, lists and long texts have flags, by which they come back.
            Client.same(client.set("number", 100, 5L).get(), true);
            Client.same(client.get("number"), 5L);
            Client.same(client.set("list", 0, new java.util.ArrayList<>(List.of(1, 2))).get(), true);
            Client.same(client.get("list"), List.of(1, 2));
            String compressed = "x".repeat(100_000);
            Client.same(client.set("long", 0, compressed).get(), true);
            Client.same(client.get("long"), compressed);
            Client.same(client.getBulk("text", "number", "nothing"), Map.of("text", "täxt", "number", 5L));
            Client.same(client.add("text", 0, "other").get(), false);
            Client.same(client.replace("text", 0, "new").get(), true);
            Client.same(client.append("text", "!").get(), true);
            Client.same(client.prepend("text", "¡").get(), true);
            Client.same(client.get("text"), "¡new!");
            var seen = client.gets("text");
            Client.same(client.cas("text", seen.getCas(), "a"), CASResponse.OK);
            Client.same(client.cas("text", seen.getCas(), "b"), CASResponse.EXISTS);
            Client.same(client.cas("nothing", seen.getCas(), "b"), CASResponse.NOT_FOUND);
            Client.same(client.set("count", 0, "41").get(), true);
            Client.same(client.incr("count", 1), 42L);
            Client.same(client.decr("count", 2), 40L);
            Client.same(client.touch("text", 100).get(), true);
            Client.same(client.delete("text").get(), true);
            Client.same(client.delete("text").get(), false);
            Client.same(client.getVersions().values().iterator().next(), "1.6.18");
            Client.same(client.getStats().values().iterator().next().get("threads"), "1");
        } finally {
            client.shutdown(10, TimeUnit.SECONDS);
        }
    }
}
