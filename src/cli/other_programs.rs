//! Options and commands of llama.cpp, ollama and vLLM: short options that POSIX reads as several letters become ours,
//! and options and commands that do not exist here are refused with advice. A name with one meaning here is
//! an alias of an option, where the option is declared; what takes other values is not.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

use lab_core::arch::nearest;
use lab_core::models::recognise::HUB_NAMES;

use super::command_line::command;

/// Short options of several letters, and ours.
const SHORT: [(&str, &str); 13] = [
    ("-hf", "--model"),
    ("--hf-repo", "--model"),
    ("-mm", "--mmproj"),
    ("-md", "--draft-model"),
    ("--draft-max", "--draft"),
    ("-ngl", "--gpu-layers"),
    ("-np", "--parallel"),
    ("-ctk", "--kv-type"),
    ("-ctv", "--v-type"),
    ("-fa", "--flash-attn"),
    ("-dev", "--device"),
    ("-ts", "--tensor-split"),
    ("-sys", "--system"),
];

/// Options and commands for models of other registries.
const DOWNLOADS: &str = "--model-url -mu --docker-repo -dr push";

/// Options that do not exist here, and how to get what they are for.
const OPTIONS: &str = "\
--tensor-parallel-size -tp --pipeline-parallel-size -pp --split-mode -sm: whole layers are shared among the devices: `--gpu-layers`, `--tensor-split SHARE,...` (docs/gpu.md)
--dtype: `--type f16` sets the type of the weights, `--kv-type f16` that of the KV cache
--quantization --load-format: a quantised model opens as it is; `--type q4_k` quantises while loading
--served-model-name --alias -a: `[aliases]` in a configuration file gives a model further names (docs/serving.md)
--gpu-memory-utilization --swap-space: `--cache BYTES` of `bench serve` limits the KV cache; `--fit-target MIB` stays free on each device
--trust-remote-code --enable-prefix-caching --enable-chunked-prefill --jinja -cb --cont-batching --cache-prompt --mmap --repack --metrics --slots --embedding --embeddings --reranking: there is no need for it here; leave it out
--enable-auto-tool-choice --tool-call-parser --reasoning-parser --reasoning-format: the formats of calls and of reasoning are found by rendering the chat template; leave it out
--hf-file -hff: the file follows the name after a colon: `-m OWNER/REPO:FILE.gguf`
--hf-token --download-dir: `HF_TOKEN` and `HF_HOME` of the environment, as in huggingface_hub
-b --batch-size -ub --ubatch-size --max-num-batched-tokens: `--prompt-batch N` of `bench serve` limits the prompt tokens of a step
-cnv --conversation -i --interactive -if: `bench chat` is the conversation in the terminal
-no-cnv --no-conversation: `bench run --raw` continues the prompt without a chat template
--speculative-config: `--draft-model` names a drafter, `--draft` the limits (docs/speculation.md)
--rope-scaling --rope-freq-base --rope-freq-scale --yarn-orig-ctx --hf-overrides: the numbers of RoPE are those of the model
--mmproj-url -mmu: download the file, and name it with `--mmproj`
--lora-scaled --lora-modules --enable-lora: `--lora FILE=SCALE`, and its scale in each request; `--lora-dir DIR` for adapters with names (docs/lora.md)
--ssl-key-file --ssl-cert-file --ssl-keyfile --ssl-certfile: `--tls-cert FILE --tls-key FILE` serve HTTPS
--kv-events-config: `--kv-events ENDPOINT`, with `--kv-events-replay` and `--kv-events-topic` (docs/serving.md)
-tb --threads-batch: `--threads N` is for prefill and decode
--reasoning-budget --thinking-budget: `thinking_budget` of a request limits the tokens of reasoning, and `/set thinking_budget N` of `bench chat`
--keepalive --keep-alive: `--idle-time SECONDS`
--verbose -v --log-verbose -lv: `--log-level debug`
--mlock --no-mmap --no-kv-offload -nkvo --numa: weights are mapped where a device can read them in place, and the KV cache is where its layer is
--main-gpu -mg: `--device NAME,...` names the devices; `bench devices` lists them
--override-tensor -ot --cpu-moe --n-cpu-moe: `--place 'layers.*.moe*=CPU'` puts blocks on another device (docs/gpu.md)";

/// Commands that do not exist here, and how to get what they are for.
const COMMANDS: &str = "\
models: `bench list` lists the downloaded models, `GET /v1/models` those of a running server
delete remove uninstall: `bench rm NAME` removes a downloaded model
download get install: `bench pull OWNER/REPO` downloads a model
login: `hf auth login` stores a token, or set `HF_TOKEN`
cp create: models are your files and folders; `bench convert` writes new ones
ps status: `curl http://127.0.0.1:11116/v1/models` lists the models of a running server with their state
show info: `bench inspect MODEL` shows a model, `bench doctor MODEL` whether it runs here
search find: the site of the Hugging Face Hub searches its models; `-m OWNER/REPO` takes one
load: a server loads a model at its first request, and at `POST /models/load`; `bench run -m MODEL PROMPT` loads one without a server
stop unload: `POST /models/unload` unloads a model of a running server, `POST /quit` ends the server
server start api: `bench serve` is the server
ui web gui open: `bench serve` has a chat page at http://127.0.0.1:11116
history log logs: the chat page of `bench serve` lists its conversations; `/save` and `/load` of `bench chat` keep one in a file; `bench serve --log FILE` keeps the log
run-batch batches: `bench batch IN.jsonl OUT.jsonl` answers the requests of a file
agent code: `bench launch claude` starts a coding agent with a running server
cli generate complete completion prompt: `bench run PROMPT` completes a prompt, `bench chat` is a conversation
quantize: `bench convert SRC DST.gguf --type q4_k_m` quantises, and `bench quantise` searches for the types
imatrix: `bench convert --calibrate TEXT --save-imatrix FILE.gguf` measures and keeps the importance of columns
bench benchmark speed: `bench perf` measures the speed
perplexity: `bench eval MODEL --text FILE` measures it
embedding embed: `bench logits` writes logits, with `--embedding` an embedding; `bench serve` has `/v1/embeddings`
version: `bench --version`";

/// The command line in the options of this program.
pub(super) fn translated(line: Vec<OsString>) -> Result<Vec<OsString>, Error> {
    // Its further words are those of the program that it starts.
    let mut is_over = line.get(1).is_some_and(|word| word == "launch");
    let translated = line.into_iter().enumerate().map(|(at, word)| {
        is_over |= word == "--";
        match word.to_str().filter(|_| at > 0 && !is_over) {
            Some(text) => one(text),
            None => Ok(word),
        }
    });
    let translated: Vec<OsString> = translated.collect::<Result<_, _>>()?;
    Ok(match translated.get(1).is_some_and(|word| word == "run") {
        true => with_prompt_last(translated),
        false => translated,
    })
}

/// A line of `bench run` in which the prompt of `-p TEXT` is its argument.
fn with_prompt_last(mut line: Vec<OsString>) -> Vec<OsString> {
    let end = line.iter().position(|word| word == "--");
    let end = end.unwrap_or(line.len());
    let names = ["-p", "--prompt"];
    let value = |word: &OsString| {
        let text = word.to_str()?;
        let mut rests = names.iter().filter_map(|name| text.strip_prefix(name));
        rests
            .find_map(|rest| rest.strip_prefix('='))
            .map(OsString::from)
    };
    let is_prompt =
        |word: &OsString| names.iter().any(|name| word == name) || value(word).is_some();
    let place = line[..end].iter().position(is_prompt);
    let Some(at) = place.filter(|_| end == line.len()) else {
        return line;
    };
    let prompt = match value(&line[at]) {
        Some(text) => text,
        None if at + 1 < line.len() => line.remove(at + 1),
        None => return line,
    };
    line.remove(at);
    line.extend(["--".into(), prompt]);
    line
}

/// A word of the command line, translated.
fn one(text: &str) -> Result<OsString, Error> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    if let Some((_, ours)) = SHORT.iter().find(|(other, _)| *other == name) {
        let value = value.map(|value| format!("={value}"));
        return Ok(format!("{ours}{}", value.unwrap_or_default()).into());
    }
    // clap would read these as `-m u` or `-h f`.
    let is_short = name.len() > 2 && name.starts_with('-') && !name.starts_with("--");
    match advice(OPTIONS, name).filter(|_| is_short) {
        Some(advice) => Err(unknown(name, advice)),
        None => Ok(OsStr::new(text).to_owned()),
    }
}

/// An error of clap with advice, if what it found is known from another program. `typed`: the command line before it was
/// translated.
pub(super) fn explained(error: Error, typed: &[OsString]) -> Error {
    let found = |kind: ContextKind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let name = found(ContextKind::InvalidArg);
            let known = name.and_then(|name| match advice(OPTIONS, &name) {
                Some(advice) => Some(unknown(&name, advice)),
                None => elsewhere(&name, typed),
            });
            known.unwrap_or_else(|| without_strange_tips(error))
        }
        ErrorKind::InvalidSubcommand => {
            let name = found(ContextKind::InvalidSubcommand);
            let known = name.and_then(|name| Some((advice(COMMANDS, &name)?, name)));
            match known {
                Some((advice, name)) => {
                    let text = format!("there is no command `{name}`: {advice}\n");
                    Error::raw(ErrorKind::InvalidSubcommand, text)
                }
                None => error,
            }
        }
        ErrorKind::MissingRequiredArgument => with_chat(error, typed),
        _ => error,
    }
}

/// The error of `bench run` without a prompt, with the command that needs none.
fn with_chat(mut error: Error, typed: &[OsString]) -> Error {
    let word = |at: usize| typed.get(at).and_then(|word| word.to_str());
    if word(1) == Some("run") {
        let is_model = |word: &OsString| word == "-m" || word == "--model" || word == "-hf";
        let model = typed.iter().position(is_model).and_then(|at| word(at + 1));
        let model = model.unwrap_or("MODEL");
        let tip = format!("`bench chat -m {model}` is a conversation, which needs no prompt");
        let tips = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tips);
    }
    error
}

/// The error of an option that other commands have, by this name or another one.
fn elsewhere(name: &str, typed: &[OsString]) -> Option<Error> {
    let long = name.strip_prefix("--")?;
    let mut command = command();
    command.build();
    // Our name of the option.
    let own = |command: &Command| {
        let mut arguments = command.get_arguments();
        let found = arguments.find(|arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(long) || aliases.contains(&long)
        });
        found.and_then(|arg| arg.get_long()).map(str::to_owned)
    };
    let owners = command.get_subcommands();
    let owners = owners.filter(|command| !command.is_hide_set());
    let owners: Vec<(String, String)> = owners
        .filter_map(|command| Some((format!("`bench {}`", command.get_name()), own(command)?)))
        .collect();
    let (_, own) = owners.first()?;
    let is_typed = |short: &str| {
        let words = typed.iter().filter_map(|word| word.to_str());
        words
            .into_iter()
            .any(|word| word.split('=').next() == Some(short))
    };
    let mut shorts = SHORT.iter().filter(|(_, ours)| *ours == name);
    let name = shorts.find(|(short, _)| is_typed(short));
    let name = name.map_or(format!("--{long}"), |(short, _)| (*short).to_owned());
    let what = match name == format!("--{own}") {
        true => "it".to_owned(),
        false => format!("`--{own}`"),
    };
    let owners: Vec<&str> = owners.iter().map(|(owner, _)| owner.as_str()).collect();
    let text = format!("{what} is an option of {}", owners.join(", "));
    Some(unknown(&name, &text))
}

/// The error of an unknown option without tips that name an option unlike it, or that take an option for a value.
fn without_strange_tips(mut error: Error) -> Error {
    let text = |value: Option<&ContextValue>| match value {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let name = text(error.get(ContextKind::InvalidArg));
    let tip = text(error.get(ContextKind::SuggestedArg));
    if nearest(&name, [tip.as_str()]).is_none() {
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::Usage);
    }
    if name.starts_with('-') {
        error.remove(ContextKind::Suggested);
    }
    error
}

fn unknown(name: &str, advice: &str) -> Error {
    let text = format!("there is no option `{name}`: {advice}\n");
    Error::raw(ErrorKind::UnknownArgument, text)
}

fn advice(table: &'static str, name: &str) -> Option<&'static str> {
    let has = |names: &str| names.split(' ').any(|own| own == name);
    let mut entries = table.lines().filter_map(|line| line.split_once(": "));
    let known = entries.find(|(names, _)| has(names));
    known
        .map(|(_, advice)| advice)
        .or(has(DOWNLOADS).then_some(HUB_NAMES))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(table: &str) -> impl Iterator<Item = &str> {
        let entries = table.lines().filter_map(|line| line.split_once(": "));
        let all = entries.flat_map(|(names, _)| names.split(' '));
        all.chain(DOWNLOADS.split(' '))
    }

    fn line(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn short_options_of_several_letters_are_translated_up_to_the_dashes() {
        let found = translated(line("bench run -ngl 99 -np=4 -c 4k -- -ngl")).expect("it is known");
        let expected = line("bench run --gpu-layers 99 --parallel=4 -c 4k -- -ngl");
        assert_eq!(found, expected);
        for prompt in ["-p -5+3=? -n 2", "--prompt=-5+3=? -n 2", "-n 2 -p -5+3=?"] {
            let found = translated(line(&format!("bench run {prompt}"))).expect("it is known");
            assert_eq!(found, line("bench run -n 2 -- -5+3=?"));
        }
        let other = line("bench perf -p 5");
        assert_eq!(translated(other.clone()).expect("it is known"), other);
        for refused in ["-hff", "-mu", "-cnv"] {
            assert!(translated(line(&format!("bench run {refused} x"))).is_err());
        }
    }

    #[test]
    fn a_model_without_a_prompt_is_pointed_to_a_conversation() {
        for (words, model) in [("run -m M", "M"), ("run -hf a/b", "a/b"), ("run", "MODEL")] {
            let typed = line(&format!("bench {words}"));
            let words = translated(typed.clone()).expect("it is known");
            let error = command().try_get_matches_from(words);
            let text = explained(error.expect_err("no prompt"), &typed).to_string();
            assert!(text.contains(&format!("`bench chat -m {model}`")), "{text}");
        }
    }

    #[test]
    fn an_option_of_another_command_is_named_as_it_was_typed() {
        for (option, what) in [
            ("-np", "`--parallel` is"),
            ("--max-num-seqs", "`--parallel` is"),
            ("--parallel", "it is"),
        ] {
            let typed = line(&format!("bench run {option} 2 x"));
            let words = translated(typed.clone()).expect("it is known");
            let error = command()
                .try_get_matches_from(words)
                .expect_err("no option");
            let text = explained(error, &typed).to_string();
            let expected =
                format!("there is no option `{option}`: {what} an option of `bench batch`");
            assert!(text.contains(&expected), "{text}");
        }
    }

    #[test]
    fn advice_is_only_for_options_that_do_not_exist() {
        let mut known: Vec<String> = Vec::new();
        let mut commands = vec![command()];
        while let Some(mut command) = commands.pop() {
            command.build();
            commands.extend(command.get_subcommands().cloned());
            known.extend(
                command
                    .get_arguments()
                    .filter_map(|arg| arg.get_long())
                    .map(|long| format!("--{long}")),
            );
        }
        for (_, ours) in SHORT {
            assert!(known.iter().any(|known| *known == ours), "{ours}");
        }
        // Another command may have the option, such as `--embedding` of `bench logits`.
        let mut top = command();
        top.build();
        for own in
            ["run", "chat", "serve"].map(|name| top.find_subcommand(name).expect("a command"))
        {
            for name in names(OPTIONS) {
                let mut own = own.get_arguments().filter_map(|arg| arg.get_long());
                assert!(
                    !own.any(|long| name.strip_prefix("--") == Some(long)),
                    "{name} exists"
                );
            }
        }
        for name in names(COMMANDS) {
            assert!(top.find_subcommand(name).is_none(), "{name} exists");
        }
    }
}
