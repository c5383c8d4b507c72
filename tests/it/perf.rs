//! What `bench perf` measures, checked for what must hold whatever the machine.

use serde_json::Value;

use crate::support::command::printed;

fn perf(arguments: &[&str]) -> String {
    printed(&[&["perf"], arguments].concat())
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Order and count of a summary.
fn check_summary(summary: &Value, count: u64) {
    assert_eq!(summary["count"], count, "{summary}");
    let values = ["min", "p50", "p90", "p99", "max"].map(|key| number(&summary[key]));
    assert!(values[0] > 0.0, "{summary}");
    assert!(values.is_sorted(), "{summary}");
    let mean = number(&summary["mean"]);
    assert!(values[0] <= mean && mean <= values[4], "{summary}");
}

fn near(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-6 * b.abs(), "{a} and {b}");
}

fn check_decode(decode: &Value, bandwidth: f64, repeat: u64) {
    let tokens = number(&decode["tokens"]);
    let sequences = number(&decode["sequences"]);
    check_summary(&decode["seconds"], repeat);
    check_summary(&decode["step_seconds"], repeat * tokens as u64);
    let seconds = number(&decode["seconds"]["p50"]);
    near(
        number(&decode["tokens_per_second"]),
        tokens * sequences / seconds,
    );
    let steps = &decode["step_seconds"];
    assert!(tokens * number(&steps["min"]) <= number(&decode["seconds"]["min"]) * 1.000_001);
    let bytes = number(&decode["weight_bytes_per_step"]) + number(&decode["cache_bytes_per_step"]);
    near(
        number(&decode["bytes_per_second"]),
        bytes * tokens / seconds,
    );
    let share = number(&decode["bytes_per_second"]) / bandwidth;
    near(number(&decode["share_of_bandwidth"]), share);
}

#[test]
fn measurements_of_the_shipped_model_are_consistent() {
    let arguments = "-p 8,24 --prompts 1,2 -n 6 -d 0,10 -s 1,3 -r 2 --thread-counts 1,2 --profile --requests --draft 4 --json";
    let report = perf(&arguments.split(' ').collect::<Vec<_>>());
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let runs = report["runs"].as_array().expect("runs");
    let threads: Vec<&Value> = runs.iter().map(|run| &run["threads"]).collect();
    assert_eq!(threads, [1, 2]);
    for run in runs {
        let bandwidth = number(&run["bandwidth_bytes_per_second"]);
        assert!((1e8..1e13).contains(&bandwidth), "{bandwidth}");
        let prefill = run["prefill"].as_array().expect("prefill");
        let field = |row: &Value, key: &str| row[key].as_u64().expect("a number");
        let cases = prefill
            .iter()
            .map(|row| (field(row, "tokens"), field(row, "prompts")));
        assert!(cases.eq([(8, 1), (8, 2), (24, 1), (24, 2)]));
        for row in prefill {
            check_summary(&row["seconds"], 2);
            let tokens = number(&row["tokens"]) * number(&row["prompts"]);
            let speed = tokens / number(&row["seconds"]["p50"]);
            near(number(&row["tokens_per_second"]), speed);
        }
        let decode = run["decode"].as_array().expect("decode");
        let cases: Vec<(u64, u64)> = decode
            .iter()
            .map(|row| {
                let field = |key: &str| row[key].as_u64().expect("a number");
                (field("depth"), field("sequences"))
            })
            .collect();
        assert_eq!(cases, [(0, 1), (0, 3), (10, 1), (10, 3)]);
        let requests = run["requests"].as_array().expect("requests");
        let through_engine = requests.iter().map(|row| {
            assert!(number(&row["tokens_per_second"]) > 0.0, "{row}");
            let field = |key: &str| row[key].as_u64().expect("a number");
            (field("depth"), field("requests"))
        });
        assert_eq!(through_engine.collect::<Vec<_>>(), cases);
        let drafts = run["drafts"].as_array().expect("drafts");
        let texts = drafts
            .iter()
            .map(|row| row["text"].as_str().expect("a name"));
        let expected = ["random", "greedy", "repeated"];
        assert!(texts.eq(expected.into_iter().cycle().take(3 * cases.len())));
        for row in drafts {
            assert!(number(&row["tokens_per_second"]) > 0.0, "{row}");
            assert!(number(&row["tokens_per_second_without"]) > 0.0, "{row}");
            assert!(number(&row["accepted"]) <= number(&row["drafted"]), "{row}");
        }
        for row in decode {
            check_decode(row, bandwidth, 2);
        }
        check_bytes(decode, &report);
        check_profiles(run);
    }
    // What scripts have always read is that of the first run and case.
    assert_eq!(report["threads"], 1);
    assert_eq!(report["prefill"], runs[0]["prefill"]);
    assert_eq!(report["decode"], runs[0]["decode"][0]);
    near(
        number(&report["decode_share_of_bandwidth"]),
        number(&report["decode"]["share_of_bandwidth"]),
    );
}

/// The threads of a pool wait for each other after each operation of a step. If they waited without giving up their
/// processor, each wait would last as long as the system lets a thread run: three steps a second.
#[cfg(target_os = "linux")]
#[test]
fn threads_that_share_a_processor_give_it_to_each_other() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    // The program inherits the processor of the thread that starts it.
    let pinned = std::thread::spawn(|| {
        let allowed = sched_getaffinity(None).expect("the processors of this thread");
        let mut one = CpuSet::new();
        let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
        one.set(first.expect("a processor"));
        sched_setaffinity(None, &one).expect("one of its processors");
        perf(&["-p", "8", "-n", "16", "-r", "3", "--threads", "2", "--json"])
    });
    let report = pinned.join().expect("it ran");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let speed = 16.0 / number(&report["decode"]["seconds"]["min"]);
    assert!(speed > 10.0, "{speed} steps a second");
}

/// Bytes read: of weights all but the token table, of which a row for each sequence; of the cache a
/// row of keys and one of values for each layer and visible position.
fn check_bytes(decode: &[Value], report: &Value) {
    let table = 768.0 * 128.0 * 2.0;
    let all = number(&report["weight_bytes"]);
    for row in decode {
        let sequences = number(&row["sequences"]);
        let rows = sequences * 128.0 * 2.0;
        near(number(&row["weight_bytes_per_step"]), all - table + rows);
        let visible = number(&row["depth"]) + 3.0 + 1.0;
        let cache = visible * 5.0 * (64.0 + 64.0) * 2.0 * sequences;
        near(number(&row["cache_bytes_per_step"]), cache);
    }
}

fn check_profiles(run: &Value) {
    let profiles = run["profiles"].as_array().expect("profiles");
    assert_eq!(profiles.len(), 3, "a prefill, and decoding one and three");
    for profile in profiles {
        // With several, small operations would seem to cost what the threads wait for each other.
        assert_eq!(profile["threads_by_operation"], 1);
        let rows = |key: &str| profile[key].as_array().expect("rows").clone();
        let sum = |key: &str, field: &str| -> f64 {
            rows(key).iter().map(|row| number(&row[field])).sum()
        };
        for field in ["seconds", "share", "weight_bytes"] {
            near(sum("blocks", field), sum("operations", field));
        }
        near(sum("blocks", "share"), 1.0);
        near(
            sum("blocks", "seconds"),
            number(&profile["seconds_in_operations"]),
        );
        let within = number(&profile["seconds_in_operations"]);
        assert!(within <= number(&profile["seconds_per_pass_by_operation"]));
        let uses = |name: &str| {
            rows("blocks")
                .iter()
                .find(|row| row["name"] == name)
                .map(|row| row["uses"].clone())
        };
        assert_eq!(uses("attention"), Some(5.into()));
        assert_eq!(uses("ffn"), Some(5.into()));
        assert_eq!(uses("norm"), Some(11.into()));
        assert_eq!(uses("head"), Some(1.into()));
    }
    // Decoding one sequence reads what the same step reads without a clock.
    let bytes = |row: &Value| -> u64 {
        let blocks = row["blocks"].as_array().expect("rows");
        blocks
            .iter()
            .filter_map(|b| b["weight_bytes"].as_u64())
            .sum()
    };
    let expected = &run["decode"][0]["weight_bytes_per_step"];
    assert_eq!(bytes(&profiles[1]), expected.as_u64().expect("a number"));
}

#[test]
fn people_get_a_line_for_each_case() {
    let text = perf(&[
        "-p",
        "8",
        "-n",
        "2",
        "-s",
        "1,2",
        "-r",
        "1",
        "--threads",
        "1",
    ]);
    assert_eq!(text.matches("prefill ").count(), 1, "{text}");
    assert_eq!(text.matches("decode ").count(), 2, "{text}");
    assert!(text.contains("memory bandwidth"), "{text}");
}
