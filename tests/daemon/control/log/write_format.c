/* write_log_format DIR: writes DIR/log, with a record of each kind before and after a snapshot. formats/make runs it
 * before a release, and test_formats.c compares what is read. It builds with the sources of any version. */
#include "common/base/file.h"
#include "tests/daemon/control/log/formats_log.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#if __has_include("daemon/control/state/features.h")
#include "daemon/control/state/features.h"
#define HAS_VERSIONS 1
#endif

static int64_t now = 1700000000000;

static void add(struct formats_log *f, struct record r)
{
    r.wall_ms = now += 1000;
    formats_log_add(f, &r);
}

static void add_node(struct formats_log *f, const char *name, const char *domain, uint64_t token)
{
    char address[32];
    struct record r = {.kind = RECORD_NODE,
                       .node = {.name = name, .address = address, .domain = domain, .token = token}};
    snprintf(address, sizeof(address), "%s:7811", name);
    memset(r.node.instance, name[0], sizeof(r.node.instance));
#ifdef HAS_VERSIONS
    r.node.newest = features_newest();
#endif
    add(f, r);
}

static void add_key(struct formats_log *f, uint32_t version, enum state_key_step step)
{
    struct record r = {.kind = RECORD_KEY, .key = {.version = version, .step = step}};
    memset(r.key.secret, (int)version, sizeof(r.key.secret));
    add(f, r);
}

static void add_token(struct formats_log *f, uint64_t id)
{
    struct record r = {.kind = RECORD_TOKEN, .token = {.id = id, .expires_ms = 1800000000000, .uses = 3}};
    memset(r.token.secret, (int)id, sizeof(r.token.secret));
    add(f, r);
}

static void add_cluster(struct formats_log *f)
{
    add_key(f, 1, KEY_ADDED);
    add_node(f, "a", "", 0);
    add_token(f, 5);
    add_node(f, "b", "rack 1", 5);
    add_node(f, "c", "rack 2", 5);
    add(f, (struct record){.kind = RECORD_NODE_LEFT, .node_left = {.name = "c"}});
    add(f, (struct record){.kind = RECORD_NODE_ADMIN, .node_admin = {.name = "b", .drained = "new memory"}});
}

/* What dtds since the cluster version have. */
static void add_newer(struct formats_log *f)
{
#ifdef HAS_VERSIONS
    add(f, (struct record){.kind = RECORD_CLUSTER_VERSION,
                           .cluster_version = {.version = features_newest(),
                                               .next_node = state_cluster(f->replica.state)->next_node}});
    add(f, (struct record){.kind = RECORD_LINEAGE, .lineage = {.id = 77, .generation = 1, .by = ""}});
#else
    (void)f;
#endif
}

static void add_job(struct formats_log *f, uint64_t id)
{
    static const struct state_member two[] = {{"a", 0}, {"b", 1}}, one[] = {{"a", 0}};
    struct record r = {.kind = RECORD_SUBMITTED,
                       .has_request = true,
                       .submitted = {.spec = "name: kept\n", .parent = id > 1 ? id - 1 : 0, .uid = 1000}};
    memset(r.request_id, (int)id, sizeof(r.request_id));
    add(f, r);
    add(f, (struct record){.kind = RECORD_EPOCH,
                           .job = id,
                           .epoch = {.epoch = 1,
                                     .members = two,
                                     .n_members = 2,
                                     .layout = "parallel.tp=2",
                                     .layout_why = "it is the fastest"}});
    add(f, (struct record){
               .kind = RECORD_CHECKPOINT,
               .job = id,
               .checkpoint = {
                   .step = 10, .epoch = 1, .path = "/c/step-10", .bytes = 5000, .committed_ms = 7, .loss = 2.5}});
    add(f, (struct record){
               .kind = RECORD_CHECKPOINT,
               .job = id,
               .checkpoint = {
                   .step = 20, .epoch = 1, .path = "/c/step-20", .bytes = 5001, .committed_ms = 8, .loss = NAN}});
    add(f, (struct record){.kind = RECORD_CHECKPOINT_REMOVED, .job = id, .removed = {.step = 10}});
    r = (struct record){.kind = RECORD_INCIDENT, .job = id, .incident = incident_none};
    r.incident.epoch = 1;
    r.incident.wall_ms = now;
    r.incident.seen = "worker rank 1 exited";
    r.incident.decided = "restart from step 20";
    r.incident.restarts = 1;
    r.incident.lost_steps = 3;
    r.incident.detect_ms = 1.5;
    r.incident.log = "the last line\n";
    add(f, r);
    add(f, (struct record){.kind = RECORD_EPOCH,
                           .job = id,
                           .epoch = {.epoch = 2, .members = one, .n_members = 1, .resume_step = 20, .restarts = 1}});
    add(f, (struct record){.kind = RECORD_DESIRED, .job = id, .desired = {.desired = DESIRED_SAVED}});
    add(f, (struct record){.kind = RECORD_ENDED, .job = id, .ended = {.end = END_CANCELED, .reason = "by its owner"}});
}

int main(int argc, char **argv)
{
    struct formats_log f;
    if (argc != 2 || file_make_dirs(argv[1], 0755)) {
        fprintf(stderr, "usage: write_log_format DIR\n");
        return 2;
    }
    formats_log_open(&f, argv[1]);
    if (f.err) {
        fprintf(stderr, "%s\n", f.why);
        return 1;
    }
    add_cluster(&f);
    add_newer(&f);
    add_job(&f, 1);
    add_job(&f, 2);
    add(&f, (struct record){.kind = RECORD_JOB_REMOVED, .job = 1});
    add_job(&f, 3);
    add_key(&f, 10, KEY_ADDED);
    add_key(&f, 10, KEY_USED);
    formats_log_close(&f);
    return 0;
}
