// go-redis, unchanged, against the server at $HEADWATER_ADDRESS.
package clients

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const timeline = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>"

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestClient(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		client := redis.NewClient(&redis.Options{
			Addr: os.Getenv("HEADWATER_ADDRESS"), Protocol: protocol})
		defer client.Close()
		check(t, client.FlushAll(ctx).Err())
		check(t, client.Set(ctx, "a", "1", time.Minute).Err())
		if value, err := client.Incr(ctx, "a").Result(); err != nil || value != 2 {
			t.Fatalf("INCR: %v %v", value, err)
		}
		if err := client.Get(ctx, "nothing").Err(); !errors.Is(err, redis.Nil) {
			t.Fatalf("GET of nothing: %v", err)
		}
		pipe := client.TxPipeline()
		incr := pipe.IncrBy(ctx, "n", 5)
		pipe.Expire(ctx, "n", time.Hour)
		_, err := pipe.Exec(ctx)
		check(t, err)
		if incr.Val() != 5 {
			t.Fatalf("INCRBY in a transaction: %v", incr.Val())
		}
		check(t, client.Do(ctx, "JOIN.ADD", "timeline", timeline, "REPLACE").Err())
		check(t, client.MSet(ctx, "s|ann|bob", "1", "p|bob|0100", "Hi").Err())
		if value, err := client.Get(ctx, "t|ann|0100|bob").Result(); err != nil || value != "Hi" {
			t.Fatalf("GET of a timeline's key: %q %v", value, err)
		}
		values, err := client.Do(ctx, "PREFIX", "t|ann|", "VALUES").StringSlice()
		if err != nil || len(values) != 1 || values[0] != "Hi" {
			t.Fatalf("PREFIX: %v %v", values, err)
		}
		err = client.Set(ctx, "t|ann|0200|bob", "mine", 0).Err()
		if err == nil || !strings.HasPrefix(err.Error(), "JOINED ") {
			t.Fatalf("SET of a maintained key: %v", err)
		}
		listener := client.Subscribe(ctx, "news")
		_, err = listener.Receive(ctx)
		check(t, err)
		check(t, client.Publish(ctx, "news", "hello").Err())
		if message, err := listener.ReceiveMessage(ctx); err != nil || message.Payload != "hello" {
			t.Fatalf("a message: %v %v", message, err)
		}
		check(t, listener.Close())
		seen := 0
		keys := client.Scan(ctx, 0, "*", 10).Iterator()
		for keys.Next(ctx) {
			seen++
		}
		check(t, keys.Err())
		if seen < 4 {
			t.Fatalf("SCAN: %d keys", seen)
		}
	}
}
