"""The part of interop_routers.py that runs in the Python with transformers. The routers of transformers' own models choose
experts for random logits; dtd's must choose the same ones, with the same weights and gradients.

A router's matrix is set to the identity, so that its input is the logits. transformers computes in float32, dtd's reference
here in float64."""
import os
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3
from transformers.models.gpt_oss import modeling_gpt_oss as oss
from transformers.models.mixtral import modeling_mixtral as mixtral
from transformers.models.olmoe import modeling_olmoe as olmoe
from transformers.models.qwen2_moe import modeling_qwen2_moe as qwen2
from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen3
from transformers.models.switch_transformers import modeling_switch_transformers as switch

TOOL = sys.argv[1]
SOFTMAX, TOPK, SIGMOID = range(3)
TOKENS = 200
CLOSE = 3e-6  # float32's rounding in some ten operations


def dtd(logits, d_weights, k, scores, norm=False, scale=1.0, groups=1, kept=1, best=1, bias=None, aux=0.0, z=0.0):
    t, experts = logits.shape
    numbers = [x for part in (logits, bias, d_weights) if part is not None for x in part.double().flatten().tolist()]
    args = [TOOL, "ref", t, experts, k, scores, int(norm), scale, groups, kept, best, int(bias is not None), aux, z]
    out = subprocess.run([str(a) for a in args], input=" ".join("%.17g" % x for x in numbers), text=True, capture_output=True)
    if out.returncode:
        sys.exit("route_tool: %s" % out.stderr)
    rows = torch.tensor([[float(x) for x in line.split()] for line in out.stdout.splitlines()], dtype=torch.float64)
    return rows[:, :k].long(), rows[:, k:2 * k], rows[:, 2 * k:]


def compare(what, got, want, floor=1.0):
    worst = ((got - want.double()).abs() / want.double().abs().clamp(min=floor)).max().item()
    if worst > CLOSE:
        sys.exit("%s: differs by %.2g" % (what, worst))
    return worst


def by_id(ids, *values):
    """Sorted by id, as dtd's are."""
    ids, order = ids.sort(dim=1)
    return [ids] + [v.gather(1, order) for v in values]


def check(name, router, k, scores, bias=None, spread=1.0, experts=16, **rule):
    torch.manual_seed(7)
    logits = (torch.randn(TOKENS, experts) * spread).requires_grad_()
    with torch.no_grad():
        router.weight.copy_(torch.eye(experts))
    _, weights, ids = router(logits)
    d_weights = torch.randn(TOKENS, k)
    want_ids, want_weights, sorted_d = by_id(ids, weights, d_weights)
    (weights * d_weights).sum().backward()
    got_ids, got_weights, d_logits = dtd(logits.detach(), sorted_d, k, scores, bias=bias, **rule)
    if not torch.equal(got_ids, want_ids):
        sys.exit("%s: %d tokens choose other experts" % (name, (got_ids != want_ids).any(1).sum()))
    scale = rule.get("scale", 1.0)
    print("%-34s weights differ by at most %.1e, gradients by %.1e"
          % (name, compare(name + ": weights", got_weights, want_weights.detach(), scale),
             compare(name + ": gradients", d_logits, logits.grad, scale)))


def config(kind, **values):
    return kind(num_attention_heads=4, num_key_value_heads=4, **values)


def deepseek_v3(groups, kept, norm, biases):
    c = config(transformers.DeepseekV3Config, hidden_size=16, n_routed_experts=16, num_experts_per_tok=4, n_group=groups,
               topk_group=kept, norm_topk_prob=norm, routed_scaling_factor=2.5)
    router = v3.DeepseekV3TopkRouter(c)
    router.e_score_correction_bias = biases
    return router


def routers():
    for e, k in (8, 2), (16, 1), (16, 4):
        c = config(transformers.MixtralConfig, hidden_size=e, num_local_experts=e, num_experts_per_tok=k)
        check("Mixtral %d of %d" % (k, e), mixtral.MixtralTopKRouter(c), k, TOPK, experts=e, spread=3)
    for norm in False, True:
        values = dict(hidden_size=16, num_experts=16, num_experts_per_tok=4, norm_topk_prob=norm)
        for name, c, kind in (("Qwen2-MoE", transformers.Qwen2MoeConfig, qwen2.Qwen2MoeTopKRouter),
                              ("Qwen3-MoE", transformers.Qwen3MoeConfig, qwen3.Qwen3MoeTopKRouter),
                              ("OLMoE", transformers.OlmoeConfig, olmoe.OlmoeTopKRouter)):
            check("%s, norm %s" % (name, norm), kind(config(c, **values)), 4, SOFTMAX, norm=norm, spread=2)
    c = config(transformers.GptOssConfig, hidden_size=16, num_local_experts=16, num_experts_per_tok=4)
    gpt_oss = oss.GptOssTopKRouter(c)
    torch.nn.init.zeros_(gpt_oss.bias)  # it is part of the logits
    check("GPT-OSS", gpt_oss, 4, TOPK, spread=3)
    for method, groups, kept in ("greedy", 1, 1), ("group_limited_greedy", 4, 2), ("group_limited_greedy", 8, 3):
        c = config(transformers.DeepseekV2Config, hidden_size=16, n_routed_experts=16, num_experts_per_tok=4, n_group=groups,
                   topk_group=kept, topk_method=method, routed_scaling_factor=16.0)
        check("DeepSeek-V2 %s, %d groups" % (method, groups), v2.DeepseekV2TopkRouter(c), 4, SOFTMAX, scale=16.0, groups=groups,
              kept=kept)
    # Biases of both signs: where the experts of other groups get the score 0, they win against negative ones.
    for spread, what in (0.0, "no biases"), (0.3, "biases"), (3.0, "large biases"):
        for groups, kept in (1, 1), (4, 2), (8, 4):
            biases = torch.randn(16, generator=torch.Generator().manual_seed(groups)) * spread
            for norm in True, False:
                best = 2 if groups > 1 else 1
                check("DeepSeek-V3, %s, %d groups, norm %s" % (what, groups, norm), deepseek_v3(groups, kept, norm, biases), 4,
                      SIGMOID, norm=norm, scale=2.5, groups=groups, kept=kept, best=best, bias=biases)


def losses():
    torch.manual_seed(3)
    for experts, k in (8, 2), (16, 4):
        logits = (torch.randn(TOKENS, experts) * 2).requires_grad_()
        none = torch.zeros(TOKENS, k)
        # transformers' loss is k where experts are equally busy, dtd's is 1.
        (mixtral.load_balancing_loss_func((logits,), experts, k) / k).backward()
        _, _, d_logits = dtd(logits.detach(), none, k, SOFTMAX, aux=1.0)
        compare("aux loss", d_logits * TOKENS, logits.grad * TOKENS, 0.1)
        logits.grad = None
        switch.router_z_loss_func(logits[None]).backward()
        _, _, d_logits = dtd(logits.detach(), none, k, SOFTMAX, z=1.0)
        compare("z-loss", d_logits * TOKENS, logits.grad * TOKENS, 1.0)
    print("the gradients of the auxiliary loss and of the z-loss agree")


routers()
losses()
