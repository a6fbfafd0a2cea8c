/* A dtd-control under an attacker's control. It sends its supervisor random messages over the channel, valid and
 * invalid, then logs that it has sent them, and sends END. DTD_TEST_SEED repeats a run. END comes last because the
 * supervisor obeys it. */
#include "daemon/supervisor/channel.h"

#include <errno.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { TIMES = 3000 };

static uint64_t dice;

static uint64_t draw(uint64_t n)
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (dice >> 33) % n;
}

static uint32_t uid_of(const char *name)
{
    const struct passwd *pw = getpwnam(name);
    return pw ? pw->pw_uid : 65534;
}

/* Draws one of the first `sound` entries of a list, which are valid, or any entry if `wild` is true. */
#define PICK(list, sound, wild) (list)[draw((wild) ? sizeof(list) / sizeof(*(list)) : (sound))]

static void draw_env(struct channel_msg *m, bool wild)
{
    static const char *const words[] = {"PWD=/",
                                        "PATH=",
                                        "DOUBLE_STEP_MS=1",
                                        "DTD_DIR=/",
                                        "=",
                                        "HOME=/root",
                                        "LD_PRELOAD=/x.so",
                                        "PWD=/nowhere",
                                        "PWD=../..",
                                        "",
                                        "A"};
    for (uint64_t n = draw(6); n; n--) {
        const char *word = PICK(words, 4, wild);
        memcpy(m->env + m->env_bytes, word, strlen(word) + 1);
        m->env_bytes += (uint32_t)strlen(word) + 1;
    }
    if (wild && m->env_bytes && draw(5) == 0)
        m->env[m->env_bytes - 1] = 'x'; /* the last string is not terminated */
}

static size_t draw_message(struct channel_msg *m)
{
    static const uint32_t kinds[] = {CHANNEL_SPAWN,
                                     CHANNEL_SPAWN,
                                     CHANNEL_KILL,
                                     CHANNEL_RELEASE,
                                     CHANNEL_LIST,
                                     CHANNEL_ACK,
                                     CHANNEL_HEARTBEAT,
                                     0,
                                     99,
                                     CHANNEL_CHILD,
                                     CHANNEL_JOB,
                                     UINT32_MAX};
    static const uint64_t jobs[] = {1, 2, 3, CHANNEL_JOB_PROBE, 0, CHANNEL_JOB_PROBE - 1};
    static const int32_t slots[] = {0, 1, -1, -2, 2, 255, 256, INT32_MAX, INT32_MIN};
    static const int32_t counts[] = {2, 1, 3, 0, -1, 256, 257, INT32_MAX};
    static const int32_t signals[] = {SIGKILL, SIGTERM, 0, -1, 64, 65, INT32_MIN};
    static const int32_t gpus[] = {0, 1, -1, INT32_MAX};
    const uint32_t uids[] = {uid_of("daemon"), uid_of("games"), 0, UINT32_MAX, 54321};
    bool wild = draw(4) == 0;
    *m = (struct channel_msg){.kind = PICK(kinds, 7, wild),
                              .job = PICK(jobs, 4, wild),
                              .slot = PICK(slots, 3, wild),
                              .slots = PICK(counts, 1, wild),
                              .signal = PICK(signals, 3, wild),
                              .gpu = PICK(gpus, 1, wild),
                              .uid = PICK(uids, 3, wild), /* root's job is invalid only for its uid */
                              .state = (int32_t)draw(4)};
    m->token[0] = (uint8_t)draw(2); /* two values only, so that an ACK often names a SPAWN's token */
    m->cpus[draw(sizeof(m->cpus))] = (uint8_t)(draw(2) * draw(256));
    draw_env(m, wild);
    size_t len = channel_msg_bytes(m);
    if (wild && draw(5) == 0)
        m->env_bytes = (uint32_t)draw(UINT32_MAX);
    return wild && draw(5) == 0 ? draw(len) : len;
}

static void send_message(const struct channel_msg *m, size_t len)
{
    static struct channel_msg received;
    struct pollfd fd = {.fd = CHANNEL_FD, .events = POLLIN | POLLOUT};
    for (;;) {
        while (recv(CHANNEL_FD, &received, sizeof(received), MSG_DONTWAIT) > 0)
            ;
        if (send(CHANNEL_FD, m, len, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 || errno != EAGAIN)
            return;
        poll(&fd, 1, 100);
    }
}

/* The supervisor first runs dtd-control to read the configuration's directories; the test supplies them. */
static int print_places(void)
{
    const char *places = getenv("DTD_TEST_PLACES");
    return places && write(3, places, strlen(places)) == (ssize_t)strlen(places) ? 0 : 1;
}

int main(int argc, char **argv)
{
    static struct channel_msg m;
    if (argc > 1 && strncmp(argv[1], "--print", 7) == 0)
        return print_places();
    const char *seed = getenv("DTD_TEST_SEED");
    dice = seed ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL) ^ (uint64_t)getpid() << 32;
    fprintf(stderr, "DTD_TEST_SEED=%llu of uid %d\n", (unsigned long long)dice, (int)getuid());
    signal(SIGTERM, SIG_IGN); /* only END ends this process */
    for (int i = 0; i < TIMES; i++) {
        size_t len = draw_message(&m);
        if (len) /* an empty packet would close the channel */
            send_message(&m, len);
    }
    fprintf(stderr, "all random messages are sent\n");
    m = (struct channel_msg){.kind = CHANNEL_END};
    send_message(&m, channel_msg_bytes(&m));
    for (;;)
        pause();
}
