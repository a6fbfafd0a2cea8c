/* What a run costs: its time with failures and checkpoints, the price of its devices, and their energy. The flags of
 * `dtctl plan` for it, and the sentences about a budget. One thread. */
#ifndef DTD_CLIENT_PLANNER_MONEY_H
#define DTD_CLIENT_PLANNER_MONEY_H

#include "client/planner/internal.h"

/* Of a whole run. Prices have the currency of cost.price. */
struct planner_bill {
    double tokens, steps;
    double seconds;   /* with the time that failures and checkpoints take; without noise */
    double share;     /* of `seconds` that makes progress */
    double price;     /* 0: unknown */
    double per_price; /* tokens for one unit of money; 0: unknown */
    double kwh;       /* 0: unknown */
};

/* The bill of planning.tokens with this layout on planning.nodes nodes. */
void planner_bill_of(const struct planning *p, const struct plan_found *f, struct planner_bill *ret);
/* An object with the members of a bill; unknown ones are null. */
json_t *planner_bill_json(const struct planner_bill *b);
/* "43120", "17.25", "12.3M" */
const char *planner_price_text(double price, char ret[OUT_NUMBER]);
const char *planner_energy_text(double kwh, char ret[OUT_NUMBER]); /* "-" for 0 */

/* One choice among which a budget decides. */
struct planner_choice {
    int64_t nodes;
    struct planner_bill bill;
};
/* The fastest choice that the budget pays for, -1 if there is none; then `why` has what is missing. */
int planner_budget_pick(const struct planner_money *m, const struct planner_choice *list, int n, struct why *why);
/* Whether the choice is within the money and within the days. */
bool planner_budget_holds(const struct planner_money *m, const struct planner_bill *b);

#endif
