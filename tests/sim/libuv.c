/* libuv on virtual time: loops, timers, the check handles, and closing; as much of it as the code that is simulated
 * uses; streams are stream.c's. The program is linked without libuv, so what is missing here is an error of the linker.
 * A loop belongs to the host on which it was made; handles keep their event and their hook in libuv's reserved words.
 */
#include "tests/sim/libraft.h"
#include "tests/sim/stream.h"

#include <arpa/inet.h>
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define TIMER_LATENESS_US 300 /* a loop is busy with other callbacks for up to this time */

static struct host *host_of(const uv_loop_t *loop)
{
    return &world.hosts[loop->backend_fd];
}

int uv_loop_init(uv_loop_t *loop)
{
    memset(loop, 0, sizeof(*loop));
    loop->backend_fd = world.current->id;
    return 0;
}

uint64_t uv_now(const uv_loop_t *loop)
{
    return (uint64_t)host_mono_us(host_of(loop)) / 1000;
}

uint64_t uv_hrtime(void)
{
    return (uint64_t)host_mono_us(world.current) * 1000;
}

static void handle_init(uv_loop_t *loop, uv_handle_t *handle, uv_handle_type type, size_t size)
{
    memset(handle, 0, size);
    handle->loop = loop;
    handle->type = type;
}

/* ---- timers ---- */

static struct event **event_of(uv_handle_t *handle)
{
    return (struct event **)&handle->u.reserved[0];
}

int uv_timer_init(uv_loop_t *loop, uv_timer_t *timer)
{
    handle_init(loop, (uv_handle_t *)timer, UV_TIMER, sizeof(*timer));
    return 0;
}

static void timer_arm(uv_timer_t *timer, uint64_t ms);

static void timer_fired(void *arg)
{
    uv_timer_t *timer = arg;
    *event_of((uv_handle_t *)timer) = NULL;
    if (timer->repeat)
        timer_arm(timer, timer->repeat);
    timer->timer_cb(timer);
}

/* Timers follow the host's clock and are late by as much as a busy loop would be. */
static void timer_arm(uv_timer_t *timer, uint64_t ms)
{
    struct host *host = host_of(timer->loop);
    int64_t us = (int64_t)ms * US_PER_MS;
    us -= us * host->on->rate_ppm / 1000000;
    us += world_between(FROM_CLOCK, 0, TIMER_LATENESS_US);
    *event_of((uv_handle_t *)timer) = world_after(host, us, timer_fired, timer);
}

int uv_timer_stop(uv_timer_t *timer)
{
    struct event **event = event_of((uv_handle_t *)timer);
    if (*event)
        world_cancel(*event);
    *event = NULL;
    return 0;
}

int uv_timer_start(uv_timer_t *timer, uv_timer_cb cb, uint64_t timeout, uint64_t repeat)
{
    uv_timer_stop(timer);
    timer->timer_cb = cb;
    timer->repeat = repeat;
    timer_arm(timer, timeout);
    return 0;
}

uint64_t uv_timer_get_repeat(const uv_timer_t *timer)
{
    return timer->repeat;
}

/* Only log/faults.c calls it, which looks for a timer of libraft's own io. */
void uv_walk(uv_loop_t *loop, uv_walk_cb cb, void *arg)
{
    libraft_walk(host_of(loop), cb, arg);
}

void uv_update_time(uv_loop_t *loop)
{
    (void)loop;
}

int uv_is_active(const uv_handle_t *handle)
{
    const struct hook *hook = handle->u.reserved[1];
    return handle->type == UV_TIMER ? handle->u.reserved[0] != NULL : hook && hook->is_on;
}

/* ---- each turn of the loop ---- */

static void check_turn(void *arg)
{
    uv_check_t *check = arg;
    check->check_cb(check);
}

int uv_check_init(uv_loop_t *loop, uv_check_t *check)
{
    handle_init(loop, (uv_handle_t *)check, UV_CHECK, sizeof(*check));
    return 0;
}

int uv_check_start(uv_check_t *check, uv_check_cb cb)
{
    struct hook *hook = calloc(1, sizeof(*hook));
    assert(hook && !check->u.reserved[1]);
    *hook = (struct hook){.fn = check_turn, .arg = check, .is_on = true, .at_end = true};
    check->check_cb = cb;
    check->u.reserved[1] = hook;
    host_hook(host_of(check->loop), hook);
    return 0;
}

/* ---- the pool: work is done when it ends, so that what it must not read may have changed meanwhile ---- */

int64_t (*libuv_blocked_us)(void);

static void work_over(void *arg)
{
    uv_work_t *work = arg;
    work->work_cb(work);
    work->after_work_cb(work, 0);
}

int uv_queue_work(uv_loop_t *loop, uv_work_t *work, uv_work_cb run, uv_after_work_cb over)
{
    work->loop = loop;
    work->work_cb = run;
    work->after_work_cb = over;
    int64_t us = world_between(FROM_CLOCK, 10, 2000) + (libuv_blocked_us ? libuv_blocked_us() : 0);
    world_after(host_of(loop), us, work_over, work);
    return 0;
}

/* ---- signals: none are sent; a loop ends with its process ---- */

void uv_stop(uv_loop_t *loop)
{
    (void)loop;
    host_exit();
}

int uv_signal_init(uv_loop_t *loop, uv_signal_t *signal)
{
    handle_init(loop, (uv_handle_t *)signal, UV_SIGNAL, sizeof(*signal));
    return 0;
}

int uv_signal_start(uv_signal_t *signal, uv_signal_cb cb, int number)
{
    (void)signal, (void)cb, (void)number;
    return 0;
}

/* ---- closing ---- */

static bool is_streams(const uv_handle_t *handle)
{
    return handle->type == UV_NAMED_PIPE || handle->type == UV_POLL;
}

void uv_unref(uv_handle_t *handle)
{
    (void)handle;
}

static void closed(void *arg)
{
    uv_handle_t *handle = arg;
    if (is_streams(handle))
        stream_handle_closed(handle);
    if (handle->close_cb)
        handle->close_cb(handle);
}

void uv_close(uv_handle_t *handle, uv_close_cb cb)
{
    struct hook *hook = handle->type == UV_CHECK ? handle->u.reserved[1] : NULL;
    if (handle->type == UV_TIMER)
        uv_timer_stop((uv_timer_t *)handle);
    if (hook)
        hook->is_on = false;
    if (is_streams(handle))
        stream_handle_close(handle);
    handle->close_cb = cb;
    world_after(host_of(handle->loop), 0, closed, handle);
}

/* ---- error texts ---- */

uv_buf_t uv_buf_init(char *base, unsigned len)
{
    return (uv_buf_t){.base = base, .len = len};
}

const char *uv_strerror(int status)
{
    return strerror(-status);
}

/* ---- addresses ---- */

int uv_ip4_addr(const char *text, int port, struct sockaddr_in *ret)
{
    *ret = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    return inet_pton(AF_INET, text, &ret->sin_addr) == 1 ? 0 : UV_EINVAL;
}

int uv_ip6_addr(const char *text, int port, struct sockaddr_in6 *ret)
{
    *ret = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    return inet_pton(AF_INET6, text, &ret->sin6_addr) == 1 ? 0 : UV_EINVAL;
}
