// go-redis's ClusterClient, unchanged, against the cluster at $HEADWATER_CLUSTER, also while the node of process $HEADWATER_CLUSTER_VICTIM is killed.
package clients

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// What does not come within this does not come.
const patience = 180 * time.Second

// Does it again where it fails: a shard may have no owner for some seconds.
func eventually(t *testing.T, what string, do func() error) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		err := do()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// Plain keys, and keys of a table with a tag, which this client takes to the owner of their slot.
func key(number int) string {
	if number%2 == 0 {
		return fmt.Sprintf("key%d", number)
	}
	return fmt.Sprintf("p|{b%d}|1", number)
}

func TestClusterClient(t *testing.T) {
	nodes := os.Getenv("HEADWATER_CLUSTER")
	if nodes == "" {
		t.Skip("HEADWATER_CLUSTER names no nodes")
	}
	ctx := context.Background()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: strings.Split(nodes, ",")})
	defer client.Close()
	write := func(from, to int) {
		for number := from; number < to; number++ {
			eventually(t, "SET", func() error { return client.Set(ctx, key(number), number, 0).Err() })
		}
	}
	read := func(to int) {
		for number := 0; number < to; number++ {
			var value string
			eventually(t, "GET", func() (err error) {
				value, err = client.Get(ctx, key(number)).Result()
				return err
			})
			if value != strconv.Itoa(number) {
				t.Fatalf("GET %s: %q", key(number), value)
			}
		}
	}
	write(0, 100)
	read(100)
	pipe := client.Pipeline()
	for number := 0; number < 20; number++ {
		pipe.Get(ctx, key(number))
	}
	if values, err := pipe.Exec(ctx); err != nil || len(values) != 20 {
		t.Fatalf("a pipeline over all shards: %v %v", values, err)
	}
	victim, err := strconv.Atoi(os.Getenv("HEADWATER_CLUSTER_VICTIM"))
	check(t, err)
	check(t, syscall.Kill(victim, syscall.SIGKILL))
	write(100, 200)
	read(200)
}
