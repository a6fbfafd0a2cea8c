/* On a given number of nodes the cheapest layout is the fastest one, because a device costs the same whatever it does.
 * Numbers of nodes differ: more of them finish earlier, but they use their devices less well and fail more often. The
 * time of a run is therefore that of its steps divided by the share that makes progress (goodput.h). */
#include "client/planner/money.h"

#include "common/conf/number.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define DAY_S 86400.0

/* ---- bills ---- */

void planner_bill_of(const struct planning *p, const struct plan_found *f, struct planner_bill *ret)
{
    const double batch = p->shape.global_batch * p->shape.seq;
    struct planner_bill b = {.tokens = p->tokens, .steps = ceil(p->tokens / batch)};
    struct plan_run run;
    struct plan_goodput goodput;
    const double useful = b.steps * f->time.seconds;
    planning_run(p, &f->layout, useful, &run);
    plan_goodput(&run, &goodput);
    b.share = goodput.share;
    b.seconds = useful / goodput.share;
    const double hours = b.seconds / 3600 * (double)p->search.workers;
    b.price = hours * p->price;
    b.per_price = b.price > 0 ? b.tokens / b.price : 0;
    b.kwh = hours * p->machine.cost.watts / 1000;
    *ret = b;
}

static json_t *known_real(double value)
{
    return value > 0 ? out_json_real(value) : json_null();
}

json_t *planner_bill_json(const struct planner_bill *b)
{
    return json_pack("{s:f,s:f,s:o,s:f,s:o,s:o,s:o}", "tokens", b->tokens, "steps", b->steps, "seconds",
                     out_json_real(b->seconds), "goodput", b->share, "price", known_real(b->price), "tokens_per_price",
                     known_real(b->per_price), "kwh", known_real(b->kwh));
}

const char *planner_price_text(double price, char ret[OUT_NUMBER])
{
    if (price >= 1e7 || !isfinite(price))
        return out_count(price, ret);
    snprintf(ret, OUT_NUMBER, price < 100 ? "%.2f" : "%.0f", price);
    return ret;
}

const char *planner_energy_text(double kwh, char ret[OUT_NUMBER])
{
    if (kwh <= 0)
        snprintf(ret, OUT_NUMBER, "-");
    else if (kwh < 9999.5)
        snprintf(ret, OUT_NUMBER, kwh < 100 ? "%.1f kWh" : "%.0f kWh", kwh);
    else
        snprintf(ret, OUT_NUMBER, "%.1f MWh", kwh / 1000);
    return ret;
}

/* ---- budgets ---- */

static bool is_paid(const struct planner_money *m, const struct planner_bill *b)
{
    return !m->budget || b->price <= m->budget;
}

static bool is_in_time(const struct planner_money *m, const struct planner_bill *b)
{
    return !m->budget_days || b->seconds <= m->budget_days * DAY_S;
}

bool planner_budget_holds(const struct planner_money *m, const struct planner_bill *b)
{
    return is_paid(m, b) && is_in_time(m, b);
}

typedef bool choice_fn(const struct planner_money *m, const struct planner_bill *b);

/* The choice with the least time, or the least price, of those that `allow` accepts (NULL: all). -1: there is none. */
static int choice_least(const struct planner_money *m, const struct planner_choice *list, int n, choice_fn *allow,
                        bool by_price)
{
    int best = -1;
    for (int i = 0; i < n; i++) {
        const double value = by_price ? list[i].bill.price : list[i].bill.seconds;
        if (allow && !allow(m, &list[i].bill))
            continue;
        if (best < 0 || value < (by_price ? list[best].bill.price : list[best].bill.seconds))
            best = i;
    }
    return best;
}

static const char *nodes_text(int64_t nodes, char ret[OUT_NUMBER])
{
    snprintf(ret, OUT_NUMBER, "%" PRId64 " node%s", nodes, nodes == 1 ? "" : "s");
    return ret;
}

static void complain_of_money(const struct planner_money *m, const struct planner_choice *least, struct why *why)
{
    char a[OUT_NUMBER], b[OUT_NUMBER], c[OUT_NUMBER], d[OUT_NUMBER], e[OUT_NUMBER], f[OUT_NUMBER];
    const struct planner_bill *bill = &least->bill;
    const double part = m->budget / bill->price;
    why_set(why, ERR_INVALID,
            "--budget %s: %s is missing; the cheapest run, on %s, costs %s. The budget pays for %.0f %% of it: write "
            "--tokens %s instead of %s, or a larger budget",
            planner_price_text(m->budget, a), planner_price_text(bill->price - m->budget, b),
            nodes_text(least->nodes, c), planner_price_text(bill->price, d), floor(100 * part),
            out_count(floor(part * bill->tokens), e), out_count(bill->tokens, f));
}

static void complain_of_time(const struct planner_money *m, const struct planner_choice *fastest, struct why *why)
{
    char a[OUT_NUMBER], b[OUT_NUMBER], c[OUT_NUMBER];
    why_set(why, ERR_INVALID,
            "--budget allows %g day%s: the fastest run, on %s, takes %s, which is %s too long; allow more days, or "
            "write fewer --tokens or other --nodes",
            m->budget_days, m->budget_days == 1 ? "" : "s", nodes_text(fastest->nodes, a),
            out_duration(fastest->bill.seconds, b), out_duration(fastest->bill.seconds - m->budget_days * DAY_S, c));
}

static void complain_of_both(const struct planner_money *m, const struct planner_choice *paid,
                             const struct planner_choice *early, struct why *why)
{
    char a[OUT_NUMBER], b[OUT_NUMBER], c[OUT_NUMBER], d[OUT_NUMBER], e[OUT_NUMBER], f[OUT_NUMBER];
    why_set(why, ERR_INVALID,
            "--budget %s:%g: no run is within both; the fastest one for the money, on %s, takes %s, and the cheapest "
            "one within the time, on %s, costs %s, which is %s more",
            planner_price_text(m->budget, a), m->budget_days, nodes_text(paid->nodes, b),
            out_duration(paid->bill.seconds, c), nodes_text(early->nodes, d), planner_price_text(early->bill.price, e),
            planner_price_text(early->bill.price - m->budget, f));
}

int planner_budget_pick(const struct planner_money *m, const struct planner_choice *list, int n, struct why *why)
{
    const int best = choice_least(m, list, n, planner_budget_holds, false);
    if (best >= 0 || !n)
        return best;
    const int paid = choice_least(m, list, n, is_paid, false), early = choice_least(m, list, n, is_in_time, true);
    if (paid < 0)
        complain_of_money(m, &list[choice_least(m, list, n, NULL, true)], why);
    else if (early < 0)
        complain_of_time(m, &list[choice_least(m, list, n, NULL, false)], why);
    else
        complain_of_both(m, &list[paid], &list[early], why);
    return -1;
}

/* ---- flags ---- */

enum { KEY_PRICE = 1024, KEY_TOKENS, KEY_BUDGET }; /* above the keys of the commands' own options */

static const struct argp_option money_options[] = {
    {"price", KEY_PRICE, "PRICE", 0, "Price of a device for an hour, instead of cost.price of the machine file", 2},
    {"tokens", KEY_TOKENS, "N", 0,
     "Tokens of the whole run, such as 300G; default: train.steps x train.global_batch x train.seq", 2},
    {"budget", KEY_BUDGET, "AMOUNT[:DAYS]", 0,
     "How many nodes finish the run for this money, and within DAYS days, and the fastest of them; in the currency of "
     "the price",
     2},
    {0}};

static bool amount_parse(const char *text, double *ret)
{
    static const int64_t factors[] = {1000, 1000000, 1000000000, 1000000000, 1000000000000};
    int64_t whole;
    double value;
    if (!number_scaled_parse(text, "kMGBT", factors, &whole))
        value = (double)whole;
    else if (number_double_parse(text, &value))
        return false;
    if (!(value > 0) || value > 1e18)
        return false;
    *ret = value;
    return true;
}

static void budget_parse(struct planner_money *m, const char *arg, struct argp_state *state)
{
    char amount[64];
    const char *colon = strchr(arg, ':');
    snprintf(amount, sizeof(amount), "%.*s", (int)(colon ? colon - arg : (long)strlen(arg)), arg);
    if (!amount_parse(amount, &m->budget) || (colon && !amount_parse(colon + 1, &m->budget_days)))
        argp_error(state, "--budget %s: write an amount of money, such as 50000, or AMOUNT:DAYS, such as 50000:30",
                   arg);
}

static error_t money_parse(int key, char *arg, struct argp_state *state)
{
    struct planner_money *m = state->input;
    switch (key) {
    case KEY_PRICE:
        if (!amount_parse(arg, &m->price) || m->price > 1e6)
            argp_error(state, "--price %s: write the price of a device for an hour, such as 2.5", arg);
        return 0;
    case KEY_TOKENS:
        if (!amount_parse(arg, &m->tokens) || m->tokens < 1)
            argp_error(state, "--tokens %s: write a number of tokens, such as 300G", arg);
        return 0;
    case KEY_BUDGET:
        budget_parse(m, arg, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp planner_money_argp = {.options = money_options, .parser = money_parse};

bool planner_goal_parse(const char *text, struct planner_args *ret)
{
    static const struct {
        const char *name;
        enum plan_goal search;
        enum money_goal money;
    } goals[] = {{"time", PLAN_TIME, MONEY_NONE},
                 {"memory", PLAN_MEMORY, MONEY_NONE},
                 {"cost", PLAN_TIME, MONEY_COST},
                 {"tokens-per-dollar", PLAN_TIME, MONEY_TOKENS}};
    for (size_t i = 0; i < sizeof(goals) / sizeof(goals[0]); i++)
        if (strcmp(text, goals[i].name) == 0) {
            ret->goal = goals[i].search;
            ret->money.goal = goals[i].money;
            return true;
        }
    return false;
}
