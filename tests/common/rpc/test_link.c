/* Listening, connecting, and links that reconnect. */
#include "common/base/clock.h"
#include "common/rpc/link.h"
#include "tests/common/rpc/pair.h"

#include <sys/socket.h>
#include <sys/un.h>

struct link_world {
    uv_loop_t loop;
    char path[108];
    int listen_fd;
    struct rpc_listener *listener;
    struct rpc_conn *accepted;
    int accepts, ups, downs, closes;
    struct rpc_link *link;
    bool closed;
    uid_t uid;
};

static void server_closed(void *owner, struct rpc_conn *conn)
{
    struct link_world *w = owner;
    if (w->accepted == conn)
        w->accepted = NULL;
    w->closes++;
}

static void accepted(void *owner, int fd, const struct rpc_peer *peer)
{
    struct link_world *w = owner;
    const struct rpc_conn_config config = {.loop = &w->loop, .owner = w, .on_close = server_closed};
    w->accepts++;
    w->uid = peer->uid;
    assert_ok(rpc_conn_open(&config, fd, 0, &w->accepted));
}

static void start_listening(struct link_world *w)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    unlink(w->path);
    memcpy(addr.sun_path, w->path, sizeof(addr.sun_path));
    w->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(w->listen_fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    assert_int_equal(listen(w->listen_fd, 8), 0);
    assert_ok(rpc_listen(&w->loop, w->listen_fd, accepted, w, &w->listener));
}

static void stop_listening(struct link_world *w)
{
    rpc_listener_close(w->listener);
    close(w->listen_fd);
    unlink(w->path);
}

static void on_up(void *owner, struct rpc_conn *conn)
{
    struct link_world *w = owner;
    assert_ptr_equal(conn, rpc_link_conn(w->link));
    w->ups++;
    rpc_link_healthy(w->link);
}

static void on_down(void *owner, err_t err)
{
    struct link_world *w = owner;
    assert_true(err != OK);
    assert_null(rpc_link_conn(w->link));
    w->downs++;
}

static void on_closed(void *owner)
{
    ((struct link_world *)owner)->closed = true;
}

static void world_init(struct link_world *w)
{
    memset(w, 0, sizeof(*w));
    snprintf(w->path, sizeof(w->path), "%s/sock", test_tmpdir());
    assert_int_equal(uv_loop_init(&w->loop), 0);
}

static void open_link(struct link_world *w)
{
    const struct rpc_link_config config = {
        .loop = &w->loop,
        .path = w->path,
        .owner = w,
        .backoff_min_ms = 2,
        .backoff_max_ms = 20,
        .on_up = on_up,
        .on_down = on_down,
    };
    assert_ok(rpc_link_open(&config, &w->link));
    assert_int_equal(w->ups + w->downs, 0);
}

static void tick(uv_timer_t *timer)
{
    (void)timer;
}

/* Until *counter reaches `least`. */
static void pump(struct link_world *w, const int *counter, int least)
{
    uv_timer_t timer;
    uv_timer_init(&w->loop, &timer);
    uv_timer_start(&timer, tick, 1, 1);
    int64_t end = clock_mono_ms() + 30000;
    while (*counter < least && clock_mono_ms() < end)
        uv_run(&w->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(&w->loop, UV_RUN_NOWAIT);
    if (*counter < least)
        fail_msg("%d of %d after 30 s", *counter, least);
}

static void world_fini(struct link_world *w)
{
    rpc_link_close(w->link, on_closed, false);
    uv_run(&w->loop, UV_RUN_DEFAULT);
    assert_true(w->closed);
    assert_int_equal(uv_loop_close(&w->loop), 0);
}

TEST(link_comes_up_when_the_server_does)
{
    struct link_world w;
    world_init(&w);
    open_link(&w);
    pump(&w, &w.downs, 3); /* no server listens */
    assert_int_equal(w.ups, 0);
    start_listening(&w);
    pump(&w, &w.accepts, 1);
    pump(&w, &w.ups, 1);
    assert_int_equal(w.uid, getuid());
    stop_listening(&w);
    world_fini(&w);
}

TEST(link_comes_back_after_every_loss)
{
    struct link_world w;
    world_init(&w);
    start_listening(&w);
    open_link(&w);
    for (int i = 1; i <= 5; i++) {
        pump(&w, &w.ups, i);
        pump(&w, &w.accepts, i);
        rpc_conn_close(w.accepted);
        pump(&w, &w.downs, i);
    }
    pump(&w, &w.ups, 6);
    rpc_link_reset(w.link); /* closed by this side */
    pump(&w, &w.ups, 7);
    stop_listening(&w);
    world_fini(&w);
}

TEST(link_closes_while_down)
{
    struct link_world w;
    world_init(&w);
    open_link(&w);
    pump(&w, &w.downs, 1);
    world_fini(&w);
}

TEST(link_closes_before_its_first_attempt)
{
    struct link_world w;
    world_init(&w);
    open_link(&w);
    world_fini(&w);
    assert_int_equal(w.ups + w.downs, 0);
}

TEST(connect_says_why_not)
{
    char path[200];
    int fd;
    snprintf(path, sizeof(path), "%s/nobody", test_tmpdir());
    assert_err(ERR_NOTFOUND, rpc_connect_unix(path, &fd));
    memset(path, 'x', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    assert_err(ERR_LIMIT, rpc_connect_unix(path, &fd));
}
