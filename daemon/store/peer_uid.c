/* Each query has one answer. The kernel answers inside sendmsg, so that the answer can be read when sendmsg returns.
 *
 * Two answers are not trusted:
 *
 * - A socket without an inode. Its process has closed it, and many kernels then report root as its owner: a client that
 *   sends a command and closes immediately would pass as root.
 * - A socket that was found after our own end of the connection was reset. Another process may use the same address by
 *   then. Therefore our own end is checked last. */
#include "daemon/store/peer_uid.h"

#include "common/base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct query {
    struct nlmsghdr header;
    struct inet_diag_req_v2 body;
};

/* The addresses of the connection as seen from the peer. The kernel keeps IPv6 sockets with IPv4 peers in its table for
 * IPv4. */
static err_t ends_of(int fd, struct sockaddr_in6 *source, struct sockaddr_in6 *target)
{
    socklen_t len = sizeof(*source);
    *source = *target = (struct sockaddr_in6){.sin6_family = AF_UNSPEC};
    if (getpeername(fd, (struct sockaddr *)source, &len))
        return ERR_CLOSED;
    len = sizeof(*target);
    if (getsockname(fd, (struct sockaddr *)target, &len))
        return ERR_CLOSED;
    return source->sin6_family == AF_INET || source->sin6_family == AF_INET6 ? OK : ERR_DENIED;
}

static void put_end(const struct sockaddr_in6 *end, __be16 *port, __be32 addr[4], bool *ret_v4)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)end;
    *ret_v4 = true;
    *port = end->sin6_port; /* at the same place in both */
    if (end->sin6_family == AF_INET) {
        addr[0] = v4->sin_addr.s_addr;
    } else if (IN6_IS_ADDR_V4MAPPED(&end->sin6_addr)) {
        memcpy(addr, &end->sin6_addr.s6_addr[12], 4);
    } else {
        memcpy(addr, &end->sin6_addr, 16);
        *ret_v4 = false;
    }
}

static err_t query_send(int netlink, struct query *q)
{
    q->header.nlmsg_len = sizeof(*q);
    q->header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
    q->header.nlmsg_flags = NLM_F_REQUEST;
    q->body.sdiag_protocol = IPPROTO_TCP;
    q->body.idiag_states = ~0u;
    q->body.id.idiag_cookie[0] = q->body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    const struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    ssize_t n = sendto(netlink, q, sizeof(*q), 0, (const struct sockaddr *)&kernel, sizeof(kernel));
    return n == (ssize_t)sizeof(*q) ? OK : err_from_errno(errno);
}

/* Reads the kernel's answer or error. The sequence number distinguishes it from answers to earlier queries. */
static err_t answer_read(int netlink, uint32_t number, struct inet_diag_msg *ret)
{
    union {
        struct nlmsghdr header;
        char room[4096];
    } answer;
    ssize_t n;
    do {
        n = recv(netlink, &answer, sizeof(answer), MSG_DONTWAIT);
        if (n < (ssize_t)sizeof(answer.header))
            return ERR_IO;
    } while (answer.header.nlmsg_seq != number);
    if (answer.header.nlmsg_type == NLMSG_ERROR && n >= (ssize_t)NLMSG_LENGTH(sizeof(struct nlmsgerr))) {
        const struct nlmsgerr *error = NLMSG_DATA(&answer.header);
        return error->error == -ENOENT ? ERR_NOTFOUND : ERR_UNSUPPORTED;
    }
    if (answer.header.nlmsg_type != SOCK_DIAG_BY_FAMILY || n < (ssize_t)NLMSG_LENGTH(sizeof(*ret)))
        return ERR_IO;
    memcpy(ret, NLMSG_DATA(&answer.header), sizeof(*ret));
    return OK;
}

static err_t look_up(int netlink, const struct sockaddr_in6 *source, const struct sockaddr_in6 *target,
                     struct inet_diag_msg *ret)
{
    static uint32_t number;
    struct query q;
    bool v4;
    memset(&q, 0, sizeof(q));
    put_end(source, &q.body.id.idiag_sport, q.body.id.idiag_src, &v4);
    put_end(target, &q.body.id.idiag_dport, q.body.id.idiag_dst, &v4);
    q.body.sdiag_family = v4 ? AF_INET : AF_INET6;
    q.header.nlmsg_seq = ++number;
    err_t err = query_send(netlink, &q);
    return err ? err : answer_read(netlink, q.header.nlmsg_seq, ret);
}

/* When no connection has these addresses, the kernel returns a listening socket instead, which is not the peer. */
static bool is_peer(const struct inet_diag_msg *found, const struct sockaddr_in6 *source,
                    const struct sockaddr_in6 *target)
{
    return found->id.idiag_sport == source->sin6_port && found->id.idiag_dport == target->sin6_port;
}

err_t peer_uid_get(int netlink, int fd, uid_t *ret)
{
    struct sockaddr_in6 source, target;
    struct inet_diag_msg found;
    err_t err = ends_of(fd, &source, &target);
    if (err)
        return err;
    err = look_up(netlink, &source, &target, &found);
    if (err == ERR_NOTFOUND || (!err && !is_peer(&found, &source, &target)))
        return ERR_DENIED;
    if (err)
        return err;
    if (!found.idiag_inode || ends_of(fd, &source, &target))
        return ERR_CLOSED;
    *ret = found.idiag_uid;
    return OK;
}

/* Tests the kernel with a query for a connection that does not exist: a kernel with sock_diag answers "not found". */
err_t peer_uid_open(int *ret_netlink, struct why *why)
{
    const struct sockaddr_in6 nobody = {.sin6_family = AF_INET};
    struct inet_diag_msg found;
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG);
    err_t err = fd < 0 ? err_from_errno(errno) : look_up(fd, &nobody, &nobody, &found);
    if (!err || err == ERR_NOTFOUND) {
        *ret_netlink = fd;
        return OK;
    }
    if (fd >= 0)
        close(fd);
    return why_set(why, ERR_UNSUPPORTED,
                   "the kernel does not report the owner of a TCP connection (sock_diag: %s), but the store must serve "
                   "its owner only: load the modules tcp_diag and inet_diag",
                   err_text(err));
}
