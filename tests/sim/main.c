/* sim: the voters of a cluster, that is, the replicated log with clients. runner.h describes the arguments. */
#include "tests/sim/bugs.h"
#include "tests/sim/check.h"
#include "tests/sim/client.h"
#include "tests/sim/disk.h"
#include "tests/sim/faults.h"
#include "tests/sim/image.h"
#include "tests/sim/model.h"
#include "tests/sim/net.h"
#include "tests/sim/operator.h"
#include "tests/sim/runner.h"
#include "tests/sim/stream.h"
#include "tests/sim/voter.h"

#include <inttypes.h>
#include <stdio.h>

#define QUIET_US (60 * US_PER_S) /* all hosts and clients must be settled this long after the last fault */

static bool is_level(void)
{
    for (int id = 1; id <= world.n_hosts; id++)
        if (!image_is_lost(id) && (!voter_is_open(&voters[id]) || voters[id].applied != check_records()))
            return false;
    return true;
}

static bool is_well(void)
{
    return clients_are_done() && is_level() && operator_is_content();
}

static void print_why_not_well(void)
{
    printf("clients %s, members %s, leader %d, records up to %" PRIu64 "\n", clients_are_done() ? "are done" : "wait",
           operator_is_content() ? "are as wanted" : "are not as wanted", operator_leader(), check_records());
    check_print();
}

static void on_record(int branch, uint64_t index, const struct record *record, const struct state_result *result)
{
    (void)branch;
    model_check(index, record, result);
    client_applied(index, record, result);
}

static void run_faults(bool fail)
{
    faults_start(fail);
    world_run(world_between(FROM_FAULTS, 10, 40) * US_PER_S, NULL);
    faults_end();
}

static void run_seed(uint64_t seed, const struct shape *shape, struct summary *ret)
{
    world_init(seed, shape->images ? IMAGE_HOSTS : shape->nodes ? shape->nodes : 3 + (int)(seed % 5));
    net_init();
    stream_init();
    check_init(on_record);
    model_init();
    world.after_event = check_event;
    if (shape->images)
        image_init(shape->blind);
    for (int id = 1; id <= world.n_hosts; id++) {
        disk_init(&disks[id], &world.hosts[id]);
        voter_start(&world.hosts[id]);
    }
    operator_start();
    clients_start((int)world_between(FROM_CLIENTS, 1, 6));
    if (shape->images)
        image_run();
    else
        run_faults(shape->disks);
    world_run(world.now_us + 3 * US_PER_S, NULL);
    clients_finish();
    runner_settle(QUIET_US, is_well, print_why_not_well, ret);
    ret->answered = clients_answered();
}

int main(int argc, char **argv)
{
    static const struct simulation simulation = {"sim", run_seed, 1, N_LOG_BUGS, N_CONTROL_BUGS + 1, N_BUGS - 1};
    return runner_main(&simulation, argc, argv);
}
