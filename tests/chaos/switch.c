/* switch N: creates N network namespaces, numbered from 1, and a network between them, which exists until this process
 * exits. Each namespace has `lo` and a link `dtd0` with the address 10.77.0.NUMBER. The other end of the link is here:
 * the switch reads packets from one link and writes them to the link of their destination. It needs no kernel module
 * except tun. A fault of a link is a condition in this program, so it does not depend on firewall rules.
 *
 * The namespace of node I is /proc/PID/fd/(100 + I). Commands are lines on standard input; each one is answered by
 * "ok":
 *
 *   I well      the link is up
 *   I down      the link is down, as after `ip link set down`
 *   I deaf      the link drops packets to the node
 *   I mute      the link drops packets from the node
 *
 * Needs the permission to create network namespaces, and /dev/net/tun; else prints the reason and exits with 77. */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { NODES_MAX = 16, NS_FD = 100, MTU = 9000 };

struct port {
    int link;   /* the tun device */
    int inside; /* a socket in the namespace, for ioctls on its devices */
    bool deaf, mute;
};

static struct port ports[NODES_MAX];
static int n_ports;

static _Noreturn void cannot(const char *what)
{
    printf("%s: %s\n", what, strerror(errno));
    exit(77);
}

static struct ifreq device(const char *name)
{
    struct ifreq r = {0};
    strcpy(r.ifr_name, name);
    return r;
}

static void set_up(const struct port *p, const char *name, bool up)
{
    struct ifreq r = device(name);
    r.ifr_flags = up ? IFF_UP : 0;
    if (ioctl(p->inside, SIOCSIFFLAGS, &r))
        cannot("SIOCSIFFLAGS");
}

static void set_address(const struct port *p, unsigned long what, const char *address)
{
    struct ifreq r = device("dtd0");
    struct sockaddr_in *in = (struct sockaddr_in *)&r.ifr_addr;
    in->sin_family = AF_INET;
    inet_pton(AF_INET, address, &in->sin_addr);
    if (ioctl(p->inside, what, &r))
        cannot(address);
}

/* Moves this process into a new namespace. It stays there, because it uses no network of its own. */
static void port_open(struct port *p, int number)
{
    struct ifreq tun = device("dtd0"), mtu = device("dtd0");
    char address[32];
    if (unshare(CLONE_NEWNET))
        cannot("a network namespace");
    int ns = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (ns < 0 || dup2(ns, NS_FD + number) < 0)
        cannot("/proc/self/ns/net");
    close(ns);
    p->inside = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    p->link = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    tun.ifr_flags = IFF_TUN | IFF_NO_PI;
    mtu.ifr_mtu = MTU;
    if (p->inside < 0 || p->link < 0 || ioctl(p->link, TUNSETIFF, &tun) || ioctl(p->inside, SIOCSIFMTU, &mtu))
        cannot("/dev/net/tun");
    snprintf(address, sizeof(address), "10.77.0.%d", number);
    set_address(p, SIOCSIFADDR, address);
    set_address(p, SIOCSIFNETMASK, "255.255.255.0");
    set_up(p, "lo", true);
    set_up(p, "dtd0", true);
}

/* A packet that the receiving link cannot queue is dropped, as on any network. */
static void carry(const struct port *from)
{
    uint8_t packet[MTU];
    ssize_t n;
    while ((n = read(from->link, packet, sizeof(packet))) >= 20) {
        int to = packet[0] >> 4 == 4 ? packet[19] : 0;
        if (!from->mute && to >= 1 && to <= n_ports && !ports[to - 1].deaf)
            (void)!write(ports[to - 1].link, packet, (size_t)n);
    }
}

static const char *obey(const char *line)
{
    static const struct {
        const char *word;
        bool up, deaf, mute;
    } orders[] = {{"well", .up = true},
                  {"down", .up = false},
                  {"deaf", .up = true, .deaf = true},
                  {"mute", .up = true, .mute = true}};
    char word[8];
    int number;
    if (sscanf(line, "%d %7s", &number, word) != 2 || number < 1 || number > n_ports)
        return "no such node";
    for (size_t i = 0; i < sizeof(orders) / sizeof(*orders); i++) {
        if (strcmp(orders[i].word, word) == 0) {
            struct port *p = &ports[number - 1];
            p->deaf = orders[i].deaf;
            p->mute = orders[i].mute;
            set_up(p, "dtd0", orders[i].up);
            return "ok";
        }
    }
    return "no such order";
}

int main(int argc, char **argv)
{
    struct pollfd fds[NODES_MAX + 1] = {{.fd = 0, .events = POLLIN}};
    char line[64];
    n_ports = argc == 2 ? atoi(argv[1]) : 0;
    if (n_ports < 1 || n_ports > NODES_MAX)
        return fprintf(stderr, "usage: switch N\n"), 2;
    for (int i = 0; i < n_ports; i++) {
        port_open(&ports[i], i + 1);
        fds[i + 1] = (struct pollfd){.fd = ports[i].link, .events = POLLIN};
    }
    setvbuf(stdin, NULL, _IONBF, 0); /* poll must see lines that were not read yet */
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ok");
    while (poll(fds, (nfds_t)n_ports + 1, -1) >= 0 || errno == EINTR) {
        for (int i = 0; i < n_ports; i++)
            if (fds[i + 1].revents)
                carry(&ports[i]);
        if (fds[0].revents) {
            if (!fgets(line, sizeof(line), stdin))
                break;
            puts(obey(line));
        }
    }
    return 0;
}
