//! The protocol against a server of the tests, the cache on disk, names and choices.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use crate::download::PIECE;
use crate::{Hub, HubError, ModelName, Progress, Settings, select};
use server::{Behaviour, COMMIT, Server, etag};

mod server;

#[derive(Default)]
struct Counts {
    total: AtomicU64,
    present: AtomicU64,
    received: AtomicI64,
    cancel_after: Option<i64>,
    is_cancelled: AtomicBool,
}

impl Progress for Counts {
    fn start(&self, total: u64, present: u64) {
        self.total.store(total, Ordering::SeqCst);
        self.present.store(present, Ordering::SeqCst);
    }
    fn advance(&self, bytes: i64) {
        let received = self.received.fetch_add(bytes, Ordering::SeqCst) + bytes;
        if self.cancel_after.is_some_and(|n| received >= n) {
            self.is_cancelled.store(true, Ordering::SeqCst);
        }
    }
    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::SeqCst)
    }
}

fn hub(endpoint: &str, cache: &Path) -> Hub {
    let settings = Settings {
        endpoint: endpoint.to_owned(),
        cache: cache.to_owned(),
        token: None,
        offline: false,
        connections: 4,
        second_ms: 1,
    };
    Hub::new(settings)
}

/// Bytes that no piece has twice.
fn content(size: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..size).map(next).collect()
}

fn folder_model(weights: usize) -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("README.md", b"# a model".to_vec()),
        ("config.json", b"{\"model_type\": \"x\"}".to_vec()),
        ("tokenizer.json", b"{}".to_vec()),
        ("model.safetensors", content(weights)),
        ("pytorch_model.bin", content(10)),
        ("1_Pooling/config.json", b"{}".to_vec()),
    ]
}

fn name(text: &str) -> ModelName {
    text.parse().expect("a name")
}

#[test]
fn a_folder_is_downloaded_with_what_describes_it_and_nothing_else() {
    let server = Server::start(&folder_model(1000), Behaviour::default());
    let dir = tempfile::tempdir().expect("a folder");
    let hub = hub(&server.endpoint, dir.path());
    let counts = Counts::default();
    let model = hub.pull(&name("owner/repo"), &counts).expect("pulled");
    assert_eq!(model.commit, COMMIT);
    assert_eq!(
        fs::read(model.path.join("model.safetensors")).expect("weights"),
        content(1000)
    );
    assert!(model.path.join("1_Pooling/config.json").exists());
    assert!(
        !model.path.join("pytorch_model.bin").exists() && !model.path.join("README.md").exists()
    );
    // The layout that the Python client expects.
    let repo = dir.path().join("models--owner--repo");
    assert_eq!(
        fs::read_to_string(repo.join("refs/main")).expect("a ref"),
        COMMIT
    );
    let link = fs::read_link(
        repo.join("snapshots")
            .join(COMMIT)
            .join("1_Pooling/config.json"),
    )
    .expect("a link");
    assert_eq!(
        link,
        Path::new("../../../blobs").join(etag("x.json", b"{}"))
    );
    assert_eq!(
        counts.received.load(Ordering::SeqCst).unsigned_abs(),
        counts.total.load(Ordering::SeqCst) - 2,
        "two files have the same content"
    );
}

#[test]
fn a_model_in_the_cache_is_found_without_a_request() {
    let server = Server::start(&folder_model(1000), Behaviour::default());
    let dir = tempfile::tempdir().expect("a folder");
    let hub = hub(&server.endpoint, dir.path());
    hub.pull(&name("owner/repo"), &Counts::default())
        .expect("pulled");
    let before = server.log.lock().expect("log").len();
    hub.find_or_pull(&name("owner/repo"), &Counts::default())
        .expect("found");
    hub.find_or_pull(&name(&format!("owner/repo@{COMMIT}")), &Counts::default())
        .expect("found by its commit");
    assert_eq!(server.log.lock().expect("log").len(), before);
    // Pulled again: asked for, not downloaded again.
    let gets = server.count("GET", "resolve") + server.count("GET", "signature");
    hub.pull(&name("owner/repo"), &Counts::default())
        .expect("pulled again");
    assert_eq!(
        server.count("GET", "resolve") + server.count("GET", "signature"),
        gets
    );
}

#[test]
fn large_files_come_in_pieces_over_several_connections() {
    let size = usize::try_from(PIECE).expect("fits") * 3 + 17;
    let server = Server::start(
        &[
            ("config.json", b"{}".to_vec()),
            ("model.safetensors", content(size)),
        ],
        Behaviour::default(),
    );
    let dir = tempfile::tempdir().expect("a folder");
    let model = hub(&server.endpoint, dir.path())
        .pull(&name("owner/repo"), &Counts::default())
        .expect("pulled");
    assert!(fs::read(model.path.join("model.safetensors")).expect("weights") == content(size));
    assert_eq!(server.count("GET", "signature"), 4);
}

#[test]
fn an_interrupted_download_goes_on_where_it_ended() {
    let size = usize::try_from(PIECE).expect("fits") * 2 + 5;
    let server = Server::start(
        &[
            ("config.json", b"{}".to_vec()),
            ("model.safetensors", content(size)),
        ],
        Behaviour::default(),
    );
    let dir = tempfile::tempdir().expect("a folder");
    let mut hub = hub(&server.endpoint, dir.path());
    hub.settings.connections = 1;
    let first = Counts {
        cancel_after: Some(i64::try_from(PIECE).expect("fits") + 1000),
        ..Counts::default()
    };
    assert!(matches!(
        hub.pull(&name("owner/repo"), &first),
        Err(HubError::Cancelled)
    ));
    assert!(
        hub.cache().find(&name("owner/repo")).is_none(),
        "a part of a model is no model"
    );
    let second = Counts::default();
    let model = hub.pull(&name("owner/repo"), &second).expect("pulled");
    assert!(second.present.load(Ordering::SeqCst) >= PIECE);
    assert!(second.received.load(Ordering::SeqCst) <= i64::try_from(PIECE).expect("fits") + 5);
    assert!(fs::read(model.path.join("model.safetensors")).expect("weights") == content(size));
}

#[test]
fn failures_on_the_way_are_survived() {
    let cases: [(&str, Behaviour); 5] = [
        (
            "connections break",
            Behaviour {
                breaks_after: Some(300),
                n_breaks: 7,
                ..Behaviour::default()
            },
        ),
        (
            "connections break without ranges",
            Behaviour {
                breaks_after: Some(300),
                n_breaks: 3,
                no_ranges: true,
                ..Behaviour::default()
            },
        ),
        (
            "no ranges",
            Behaviour {
                no_ranges: true,
                ..Behaviour::default()
            },
        ),
        (
            "an expired location",
            Behaviour {
                expires: true,
                ..Behaviour::default()
            },
        ),
        (
            "rate limits",
            Behaviour {
                n_limited: 3,
                ..Behaviour::default()
            },
        ),
    ];
    for (case, behaviour) in cases {
        let server = Server::start(&folder_model(5000), behaviour);
        let dir = tempfile::tempdir().expect("a folder");
        let model = hub(&server.endpoint, dir.path()).pull(&name("owner/repo"), &Counts::default());
        let model = model.unwrap_or_else(|e| panic!("{case}: {e}"));
        assert_eq!(
            fs::read(model.path.join("model.safetensors")).expect("weights"),
            content(5000),
            "{case}"
        );
    }
}

#[test]
fn refusals_say_what_helps() {
    let refuse = |status, code| Behaviour {
        refusal: Some((status, code)),
        ..Behaviour::default()
    };
    let cases = [
        (
            "owner/repo",
            refuse(401, "GatedRepo"),
            "accept its conditions",
        ),
        (
            "owner/repo",
            refuse(403, "GatedRepo"),
            "accept its conditions",
        ),
        (
            "owner/repo",
            refuse(401, "RepoNotFound"),
            "check the spelling",
        ),
        ("owner/repo", refuse(401, ""), "check the spelling"),
        (
            "owner/repo@nope",
            refuse(404, "RevisionNotFound"),
            "no revision `nope`",
        ),
        ("owner/repo", refuse(403, ""), "the token was refused"),
        ("owner/repo", refuse(500, ""), "answered HTTP 500"),
        (
            "owner/repo",
            Behaviour {
                n_limited: 1000,
                ..Behaviour::default()
            },
            "limits the rate of requests",
        ),
        (
            "owner/repo:Q4_K_M",
            Behaviour::default(),
            "no GGUF file of `Q4_K_M`",
        ),
        (
            "owner/other",
            Behaviour::default(),
            "`owner/other` was not found",
        ),
        (
            "owner/repo",
            Behaviour {
                corrupt: true,
                ..Behaviour::default()
            },
            "the download was discarded",
        ),
        (
            "owner/repo",
            Behaviour {
                breaks_after: Some(0),
                n_breaks: 1000,
                ..Behaviour::default()
            },
            "what was downloaded is kept",
        ),
    ];
    for (text, behaviour, expected) in cases {
        let server = Server::start(&folder_model(100), behaviour);
        let dir = tempfile::tempdir().expect("a folder");
        let error = hub(&server.endpoint, dir.path())
            .pull(&name(text), &Counts::default())
            .expect_err(expected)
            .to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn the_token_goes_to_the_hub_alone() {
    let server = Server::start(
        &folder_model(1000),
        Behaviour {
            token: Some("hf_secret"),
            ..Behaviour::default()
        },
    );
    let dir = tempfile::tempdir().expect("a folder");
    let mut hub = hub(&server.endpoint, dir.path());
    assert!(matches!(
        hub.pull(&name("owner/repo"), &Counts::default()),
        Err(HubError::RepoNotFound { .. })
    ));
    hub.settings.token = Some("hf_secret".to_owned());
    // The store refuses requests with a token.
    hub.pull(&name("owner/repo"), &Counts::default())
        .expect("pulled");
    assert!(server.count("GET", "signature") > 0);
}

#[test]
fn a_renamed_repository_is_followed() {
    let server = Server::start(&folder_model(1000), Behaviour::default());
    let dir = tempfile::tempdir().expect("a folder");
    let model = hub(&server.endpoint, dir.path())
        .pull(&name("owner/old"), &Counts::default())
        .expect("pulled");
    assert!(model.path.join("config.json").exists());
}

#[test]
fn offline_asks_nobody() {
    let server = Server::start(&folder_model(1000), Behaviour::default());
    let dir = tempfile::tempdir().expect("a folder");
    let mut hub = hub(&server.endpoint, dir.path());
    hub.settings.offline = true;
    let error = hub
        .pull(&name("owner/repo"), &Counts::default())
        .expect_err("nothing is cached");
    assert!(matches!(error, HubError::Offline { .. }));
    assert!(server.log.lock().expect("log").is_empty());
    hub.settings.offline = false;
    hub.pull(&name("owner/repo"), &Counts::default())
        .expect("pulled");
    hub.settings.offline = true;
    hub.pull(&name("owner/repo"), &Counts::default())
        .expect("from the cache");
}

#[test]
fn hostile_listings_write_nothing_outside() {
    for path in [
        "../evil.json",
        "/etc/evil.json",
        "a/../../evil.json",
        "a\\..\\evil.json",
        "",
    ] {
        let server = Server::start(
            &[(path, b"{}".to_vec()), ("model.safetensors", content(10))],
            Behaviour::default(),
        );
        let dir = tempfile::tempdir().expect("a folder");
        let error = hub(&server.endpoint, dir.path())
            .pull(&name("owner/repo"), &Counts::default())
            .expect_err(path);
        assert!(
            matches!(error, HubError::Protocol { .. }),
            "{path}: {error}"
        );
    }
}

#[test]
fn the_cache_is_listed_and_models_are_removed_one_by_one() {
    let files = [
        ("m-Q4_K_M.gguf", content(100)),
        ("m-Q8_0.gguf", content(200)),
        ("config.json", b"{}".to_vec()),
        ("mmproj-m.gguf", content(3)),
    ];
    let server = Server::start(&files, Behaviour::default());
    let dir = tempfile::tempdir().expect("a folder");
    let hub = hub(&server.endpoint, dir.path());
    assert_eq!(
        hub.pull(&name("owner/repo"), &Counts::default())
            .expect("the usual one")
            .bytes,
        100
    );
    let other = hub.pull(&name("owner/repo:q8_0"), &Counts::default());
    let beside = other
        .expect("the other")
        .path
        .with_file_name("mmproj-m.gguf");
    assert_eq!(fs::read(beside).expect("the projector"), content(3));
    let names = |hub: &Hub| {
        hub.cache()
            .list()
            .iter()
            .map(|m| m.name.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&hub), ["owner/repo:Q4_K_M", "owner/repo:Q8_0"]);
    let removed = hub
        .cache()
        .remove(&name("owner/repo:Q4_K_M"))
        .expect("removed");
    assert_eq!(removed.bytes, 100);
    assert_eq!(names(&hub), ["owner/repo:Q8_0"]);
    let removed = hub
        .cache()
        .remove(&name("owner/repo:Q8_0"))
        .expect("the last one, and the projector that both had");
    assert_eq!(removed.bytes, 203);
    assert!(!dir.path().join("models--owner--repo").exists());
    assert!(hub.cache().remove(&name("owner/repo")).is_err());
}

#[test]
fn a_folder_without_a_shard_of_its_index_is_not_complete() {
    let index = br#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    let files = [
        ("config.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index.to_vec()),
        ("model-00001-of-00002.safetensors", content(10)),
        ("model-00002-of-00002.safetensors", content(20)),
    ];
    let server = Server::start(&files, Behaviour::default());
    let dir = tempfile::tempdir().expect("a folder");
    let hub = hub(&server.endpoint, dir.path());
    let model = hub
        .pull(&name("owner/repo"), &Counts::default())
        .expect("pulled");
    fs::remove_file(model.path.join("model-00002-of-00002.safetensors")).expect("removed");
    assert!(hub.cache().find(&name("owner/repo")).is_none());
    hub.find_or_pull(&name("owner/repo"), &Counts::default())
        .expect("only what is missing");
    assert!(hub.cache().find(&name("owner/repo")).is_some());
}

#[test]
fn names_are_read_and_paths_are_no_names() {
    let parsed = |text: &str| name(text).to_string();
    assert_eq!(parsed("Qwen/Qwen3-0.6B"), "Qwen/Qwen3-0.6B");
    assert_eq!(
        parsed("hf.co/unsloth/Qwen3-8B-GGUF:Q4_K_M"),
        "unsloth/Qwen3-8B-GGUF:Q4_K_M"
    );
    assert_eq!(
        parsed("https://huggingface.co/a/b@refs/pr/3"),
        "a/b@refs/pr/3"
    );
    assert_eq!(parsed("a/b@v1:folder/x.gguf"), "a/b:folder/x.gguf@v1");
    for bad in [
        "a", "a/", "/a/b", "a/b/c", "a/b:", "a/b@", "a/b:../x", "a/b@..", "a/b:x:y", "a b/c",
        "../a", "a/..", "a/b:x?y", "a--b/c",
    ] {
        assert!(bad.parse::<ModelName>().is_err(), "{bad}");
    }
    for path in ["./a/b", "/a/b", "~/a", "a.gguf", "a/b/c.gguf", "../a/b"] {
        assert!(!ModelName::is_name(path), "{path}");
    }
    assert!(ModelName::is_name("a/b") && ModelName::is_name("hf.co/a/b:Q8_0"));
}

#[test]
fn the_files_of_a_model_are_chosen() {
    let chosen = |files: &[&str], variant: Option<&str>| {
        let files: Vec<String> = files.iter().map(|f| (*f).to_owned()).collect();
        select("o/r", &files, variant)
            .map(|s| s.files)
            .map_err(|e| e.to_string())
    };
    let ggufs = [
        "x-Q8_0.gguf",
        "x-UD-Q4_K_XL.gguf",
        "Q6_K/x-Q6_K-00001-of-00002.gguf",
        "Q6_K/x-Q6_K-00002-of-00002.gguf",
        "mmproj-F16.gguf",
        "imatrix.gguf",
    ];
    type Case<'c> = (Option<&'c str>, Result<&'c [&'c str], &'c str>);
    let cases: [Case<'_>; 9] = [
        (None, Ok(&["x-UD-Q4_K_XL.gguf"])),
        (Some("latest"), Ok(&["x-UD-Q4_K_XL.gguf"])),
        (Some("q8_0"), Ok(&["x-Q8_0.gguf"])),
        (Some("Q4_K_XL"), Ok(&["x-UD-Q4_K_XL.gguf"])),
        (Some("ud-q4_k_xl"), Ok(&["x-UD-Q4_K_XL.gguf"])),
        (
            Some("Q6_K"),
            Ok(&[
                "Q6_K/x-Q6_K-00001-of-00002.gguf",
                "Q6_K/x-Q6_K-00002-of-00002.gguf",
            ]),
        ),
        (
            Some("Q6_K/x-Q6_K-00001-of-00002.gguf"),
            Ok(&[
                "Q6_K/x-Q6_K-00001-of-00002.gguf",
                "Q6_K/x-Q6_K-00002-of-00002.gguf",
            ]),
        ),
        (Some("Q2_K"), Err("it has Q6_K, Q8_0, UD-Q4_K_XL")),
        (Some("F16"), Err("no GGUF file of `F16`")),
    ];
    for (variant, expected) in cases {
        match (chosen(&ggufs, variant), expected) {
            (Ok(files), Ok(expected)) => assert_eq!(files, expected, "{variant:?}"),
            (Err(e), Err(part)) => assert!(e.contains(part), "{variant:?}: {e}"),
            (found, _) => panic!("{variant:?}: {found:?}"),
        }
    }
    let consolidated = [
        "config.json",
        "consolidated.safetensors",
        "model-00001-of-00001.safetensors",
        "onnx/model.onnx",
        "vocab.txt",
        "x.py",
    ];
    assert_eq!(
        chosen(&consolidated, None).expect("a folder"),
        [
            "config.json",
            "model-00001-of-00001.safetensors",
            "vocab.txt"
        ]
    );
    let raw = ["params.json", "consolidated.safetensors", "tekken.json"];
    assert_eq!(
        chosen(&raw, None).expect("a folder"),
        ["consolidated.safetensors", "params.json", "tekken.json"]
    );
    let adapter = [
        "adapter_config.json",
        "adapter_model.safetensors",
        "adapter_model.bin",
    ];
    assert_eq!(
        chosen(&adapter, None).expect("an adapter"),
        ["adapter_config.json", "adapter_model.safetensors"]
    );
    assert!(
        chosen(&["config.json", "pytorch_model.bin"], None)
            .expect_err("no weights")
            .contains("no weights in safetensors or GGUF files")
    );
}

#[test]
fn settings_are_those_of_the_python_client() {
    let of = |variables: &[(&str, &str)]| {
        let variables: Vec<(String, String)> = variables
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        Settings::from_variables(move |name| {
            variables
                .iter()
                .find(|(k, _)| k == name)
                .map(|(_, v)| v.clone())
        })
    };
    let plain = of(&[("HOME", "/home/u")]);
    assert_eq!(
        (
            plain.cache.as_path(),
            plain.endpoint.as_str(),
            plain.offline
        ),
        (
            Path::new("/home/u/.cache/huggingface/hub"),
            "https://huggingface.co",
            false
        )
    );
    assert_eq!(
        of(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]).cache,
        Path::new("/x/huggingface/hub")
    );
    assert_eq!(
        of(&[("HOME", "/h"), ("HF_HOME", "~/hf")]).cache,
        Path::new("/h/hf/hub")
    );
    assert_eq!(
        of(&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/c")]).cache,
        Path::new("/c")
    );
    assert_eq!(
        of(&[("HF_ENDPOINT", "http://mirror/")]).endpoint,
        "http://mirror"
    );
    assert_eq!(of(&[("HF_TOKEN", " t\n")]).token.as_deref(), Some("t"));
    assert!(of(&[("HF_HUB_OFFLINE", "1")]).offline && !of(&[("HF_HUB_OFFLINE", "0")]).offline);
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("token"), "stored\n").expect("written");
    assert_eq!(
        of(&[("HF_HOME", dir.path().to_str().expect("text"))])
            .token
            .as_deref(),
        Some("stored")
    );
}
