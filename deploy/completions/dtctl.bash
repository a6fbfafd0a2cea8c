# Completion of dtctl for bash: source this file, or install it as `dtctl` in the folder of bash-completion.
# tests/client compares the lists with the program.

_dtctl_jobs() {
  dtctl status -o jsonl 2>/dev/null | sed -n 's/^{"job": "\([^"]*\)".*/\1/p'
}

_dtctl_command() { # the first word that is neither an option nor an option's value
  local i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
    -D | --dtd-dir | -o | --output) ((i++)) ;;
    -*) ;;
    *) printf '%s %s' "${COMP_WORDS[i]}" "$i"; return ;;
    esac
  done
}

_dtctl() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
  local commands="up down submit run status metrics logs profile why report top events cancel rm rerun resume plan explain ckpt data generate node store cluster web version help"
  local global="--dtd-dir --output --help" command at options="" sub=""
  read -r command at <<<"$(_dtctl_command)"
  COMPREPLY=()

  case $prev in
  -o | --output) COMPREPLY=($(compgen -W "text json jsonl" -- "$cur")); return ;;
  -D | --dtd-dir | --cache) COMPREPLY=($(compgen -d -- "$cur")); return ;;
  --format) COMPREPLY=($(compgen -W "safetensors" -- "$cur")); return ;;
  --type) COMPREPLY=($(compgen -W "submitted started epoch running failure warning checkpoint checkpoint-failed straggler straggler-gone cancel ended removed joined left lost back drained undrained" -- "$cur")); return ;;
  -t | --state) COMPREPLY=($(compgen -W "active pending starting running recovering stopping done failed canceled" -- "$cur")); return ;;
  -u | --user) COMPREPLY=($(compgen -u -- "$cur")); return ;;
  --dtype) COMPREPLY=($(compgen -W "float32 bfloat16" -- "$cur")); return ;;
  --stop-signal) COMPREPLY=($(compgen -W "TERM INT HUP QUIT USR1 USR2 ALRM" -- "$cur")); return ;;
  --tokenizer-file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
  --tokenizer) COMPREPLY=($(compgen -W "bytes words split bpe" -- "$cur")); return ;;
  esac

  case $command in
  "") COMPREPLY=($(compgen -W "$commands $global" -- "$cur")); return ;;
  help) COMPREPLY=($(compgen -W "$commands" -- "$cur")); return ;;
  submit) options="--set --optimizer --map --detach --batch --dry-run --take-over --help-keys" ;;
  status) options="--state --user" ;;
  run) options="--env-file --nodes --workers-per-node --memory --cores --max-restarts --no-grow --grace --stop-signal --master-addr --master-port --name --env --detach --log-dir --quiet --batch --gpus --nnodes --nproc-per-node" ;;
  metrics) options="--follow --from --last --points --ranks --to --dir" ;;
  logs) options="--follow --rank --tail" ;;
  profile) options="--steps --to" ;;
  why) options="--incident" ;;
  top) options="--delay --batch --iterations --once --user" ;;
  events) options="--follow --job --node --since --type" ;;
  report) options="--to --wait" ;;
  rerun) options="--set --optimizer --map --detach" ;;
  resume) options="--workers --steps --more --step --set --optimizer --map --take-over --detach" ;;
  cancel) options="--save --grace --now" ;;
  plan) options="--set --optimizer --map --timeline --measured --schedule-csv --search --strategies --forecast --machine --nodes --goal --budget --price --tokens --pareto --picture --top --write --days --operations --own --steps --seed --spares --memory --calibrate --brief --folder" ;;
  explain) options="--html --svg --measured --set --optimizer --map" ;;
  generate) options="--prompt --file --chat --template --system --tokens --temperature --top-k --top-p --min-p --repetition-penalty --stop --ignore-eos --prompts --batch --seed --dtype --tp --pp" ;;
  ckpt) sub="ls inspect verify export import upcycle" options="--no-hash --format --dtype --shard-bytes --experts --experts-per-token --set" ;;
  node) sub="drain undrain" options="--reason" ;;
  cluster) sub="init token join status leave remove rotate backup restore recover" options="--name --listen --advertise --domain --uses --hours --token-file --yes --evict --wait --state" ;;
  store) sub="open ls close" options="--name" ;;
  web) options="--open --port" ;;
  data) sub="prepare info show tokenize" options="--tokenizer --tokenizer-file --lowercase --raw --format --field --label --bos --eos --vocab-from --cache --samples --special" ;;
  esac
  if [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$options $global" -- "$cur"))
  elif [[ -n $sub ]] && ((COMP_CWORD == at + 1)); then
    COMPREPLY=($(compgen -W "$sub" -- "$cur"))
  else
    case $command in
    status | metrics | logs | profile | why | report | top | events | cancel | rm | rerun) COMPREPLY=($(compgen -W "$(_dtctl_jobs)" -- "$cur")) ;;
    resume | ckpt | generate) COMPREPLY=($(compgen -W "$(_dtctl_jobs)" -- "$cur") $(compgen -d -- "$cur")) ;;
    *) COMPREPLY=($(compgen -f -- "$cur")) ;;
    esac
  fi
}
complete -o filenames -F _dtctl dtctl
