//! Recognises paths without a usable model, by their names and the names of files in them.
//!
//! Layouts of other programs and incomplete downloads are recognised, and the message states the next step. Only an
//! adapter's configuration is read. This runs before the reader of a format opens a path.

use std::path::Path;

use crate::arch::nearest;

/// What is said to whoever names a model of another registry.
pub const HUB_NAMES: &str = "models are named as the Hugging Face Hub names them: `-m OWNER/NAME`, or `-m OWNER/NAME:QUANT` \
     for one of its GGUF files";

/// Maximum number of names of a folder that are examined.
const MAX_NAMES: usize = 4096;

/// The reason why a path has no usable model, as far as names show; none if the reader of a format should open it.
pub fn of_path(path: &Path, built_in: &[&str]) -> Option<String> {
    if let Err(error) = path.metadata() {
        let is_missing = error.kind() == std::io::ErrorKind::NotFound;
        return is_missing.then(|| missing(path, built_in));
    }
    path.is_dir().then(|| of_folder(path)).flatten()
}

/// Whether a folder has a configuration, and no weights in a format that opens.
pub fn lacks_weights(folder: &Path) -> bool {
    let names = names(folder);
    let is_weights = |name: &String| name.ends_with(".safetensors") || name.ends_with(".gguf");
    names.iter().any(|name| name == "config.json") && !names.iter().any(is_weights)
}

/// Message for a path that does not exist: the nearest name, the way to get a model of a registry, or the nearest
/// existing folder.
pub fn missing(path: &Path, built_in: &[&str]) -> String {
    if path.symlink_metadata().is_ok() {
        return "this is a link to a file that does not exist; download what it leads to".into();
    }
    let folder = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("."),
    };
    if !folder.is_dir() {
        if let Some(way) = path.to_str().and_then(of_registry) {
            return format!("no such file or folder; {way}");
        }
        let there = folder.ancestors().find(|folder| folder.is_dir());
        let there = there.map(|there| match there.as_os_str().is_empty() {
            true => String::new(),
            false => format!(
                "; `{}` is the last folder of the path that exists",
                there.display()
            ),
        });
        return format!("no such file or folder{}", there.unwrap_or_default());
    }
    let names = names(folder);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let near = nearest(&name, names.iter().map(String::as_str));
    let near = match near {
        Some(near) => Some(folder.join(near).display().to_string()),
        None if path.components().count() == 1 => {
            nearest(&name, built_in.iter().copied()).map(str::to_owned)
        }
        None => None,
    };
    if let Some(near) = near {
        return format!("no such file or folder; did you mean `{near}`?");
    }
    match path.to_str().and_then(of_registry) {
        Some(way) => format!("no such file or folder; {way}"),
        None => "no such file or folder".into(),
    }
}

/// How to get a model that is named as registries name it: `OWNER/NAME`, an address of the Hub, or `NAME:TAG`. None: the
/// text is a path.
fn of_registry(text: &str) -> Option<String> {
    let is_file = |text: &str| {
        [".gguf", ".safetensors", ".bin"]
            .iter()
            .any(|end| text.ends_with(end))
    };
    let is_name = |part: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        !part.starts_with('.') && !part.is_empty() && part.chars().all(is_plain)
    };
    let hosts = ["https://", "http://", "hf://"];
    let host = hosts.iter().find_map(|host| text.strip_prefix(host));
    let bare = host.unwrap_or(text);
    let hubs = ["huggingface.co/", "www.huggingface.co/", "hf.co/"];
    let of_hub = hubs.iter().find_map(|hub| bare.strip_prefix(hub));
    if let (Some(_), None, false) = (host, of_hub, text.starts_with("hf://")) {
        return Some("download the file, and name it".into());
    }
    let is_hub = of_hub.is_some() || host.is_some();
    if !is_hub && text.starts_with('/') {
        return None;
    }
    let path = of_hub.unwrap_or(bare);
    let (path, tag) = match path.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (path, None),
    };
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let is_known = parts.iter().all(|part| is_name(part)) && tag.is_none_or(is_name);
    match parts.as_slice() {
        [owner, name, rest @ ..] if is_known && (is_hub || (rest.is_empty() && !is_file(name))) => {
            let file = rest
                .last()
                .filter(|file| is_file(file))
                .map(|file| (*file).to_owned());
            let part = file.or_else(|| tag.map(str::to_owned));
            let part = part.map_or_else(String::new, |part| format!(":{part}"));
            Some(format!(
                "`bench pull {owner}/{name}{part}` downloads it from the Hugging Face Hub"
            ))
        }
        [name] if is_known && !is_hub && !is_file(name) && !text.contains('/') => {
            Some(HUB_NAMES.into())
        }
        _ => None,
    }
}

/// The names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.take(MAX_NAMES).collect();
    names.sort_unstable();
    names
}

/// The content of a folder without a usable model.
fn of_folder(folder: &Path) -> Option<String> {
    let names = names(folder);
    let has = |name: &str| names.iter().any(|other| other == name);
    let ending = |endings: &[&str]| {
        let fits = |name: &&String| endings.iter().any(|ending| name.ends_with(ending));
        names.iter().filter(fits).collect::<Vec<&String>>()
    };
    let tensors = ending(&[".safetensors"]);
    let ggufs = ending(&[".gguf"]);
    if has("adapter_config.json") && !has("config.json") {
        let base = base_of(&folder.join("adapter_config.json"));
        return Some(format!(
            "this is a LoRA adapter and not a model; run it with its base model{}: \
             `-m BASE --lora {}`",
            base.map(|base| format!(" `{base}`")).unwrap_or_default(),
            folder.display()
        ));
    }
    let is_ours = has("config.json") && !tensors.is_empty();
    let is_incomplete = has("config.json") && has("model.safetensors.index.json");
    if is_ours || is_incomplete {
        return None;
    }
    if let [first, ..] = ggufs.as_slice() {
        return Some(format!(
            "this folder holds GGUF files and is not a model itself; name one of them: \
             `-m {}` (`--models {}` serves all)",
            folder.join(first).display(),
            folder.display()
        ));
    }
    if has("params.json") && (has("consolidated.safetensors") || !ending(&[".pth"]).is_empty()) {
        return Some(
            "this folder has the layout of the model's publisher (`params.json` and `consolidated` files); \
             take the one with `config.json` and `model.safetensors`"
                .into(),
        );
    }
    let pickles = ending(&[".bin", ".pth", ".pt", ".ckpt"]);
    if let ([first, ..], true) = (pickles.as_slice(), tensors.is_empty()) {
        return Some(format!(
            "this folder has its weights as PyTorch files only (`{first}`); take a version with \
             safetensors, or convert them with the model's own library (`save_pretrained`)"
        ));
    }
    Some(match (has("config.json"), tensors.is_empty()) {
        (true, _) => "this folder has a `config.json` and no weights; download its `.safetensors` files",
        (false, false) => {
            "this folder has safetensors and no `config.json`; download that as well"
        }
        (false, true) if names.is_empty() => "this folder is empty",
        (false, true) => {
            "this folder holds no model: expected `config.json` and safetensors, or a GGUF file as path"
        }
    }
    .into())
}

/// The base model that an adapter's configuration names.
fn base_of(config: &Path) -> Option<String> {
    let text = lab_base::weights::safetensors::read_small(config, 1 << 20).ok()?;
    let json: serde_json::Value = serde_json::from_slice(&text).ok()?;
    let base = json.get("base_model_name_or_path")?.as_str()?;
    let base: String = base.chars().filter(|c| !c.is_control()).take(80).collect();
    (!base.is_empty()).then_some(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).expect("a writable folder");
        }
        folder
    }

    #[test]
    fn folders_that_are_no_models_are_known_by_their_names() {
        let adapter = r#"{"base_model_name_or_path": "some/base"}"#;
        for (files, expected) in [
            (&[][..], "is empty"),
            (
                &[("adapter_config.json", adapter)],
                "its base model `some/base`: `-m BASE --lora",
            ),
            (&[("a.gguf", ""), ("b.gguf", "")], "a.gguf`"),
            (
                &[("params.json", ""), ("consolidated.safetensors", "")],
                "the layout of the model's publisher",
            ),
            (
                &[("params.json", ""), ("consolidated.00.pth", "")],
                "the layout of the model's publisher",
            ),
            (
                &[("config.json", ""), ("pytorch_model.bin", "")],
                "PyTorch files only (`pytorch_model.bin`)",
            ),
            (&[("config.json", "")], "no weights"),
            (&[("model.safetensors", "")], "no `config.json`"),
            (&[("notes.txt", "")], "holds no model"),
        ] {
            let folder = folder(files);
            let found = of_path(folder.path(), &[]).unwrap_or_default();
            assert!(found.contains(expected), "{expected}: {found}");
        }
        for files in [
            &[("config.json", ""), ("model.safetensors", "")][..],
            &[("config.json", ""), ("model.safetensors.index.json", "")],
            &[
                ("config.json", ""),
                ("model.safetensors", ""),
                ("adapter_config.json", ""),
            ],
        ] {
            assert_eq!(of_path(folder(files).path(), &[]), None);
        }
    }

    #[test]
    fn a_path_that_does_not_exist_is_told_with_the_nearest_name() {
        let folder = folder(&[("model-q4.gguf", ""), ("other.txt", "")]);
        let found = of_path(&folder.path().join("model-q4.guf"), &[]).unwrap_or_default();
        let near = folder.path().join("model-q4.gguf");
        assert_eq!(
            found,
            format!("no such file or folder; did you mean `{}`?", near.display())
        );
        let found = of_path(&folder.path().join("colour"), &[]).unwrap_or_default();
        assert_eq!(found, "no such file or folder");
        let found = of_path(&folder.path().join("x/y/z.gguf"), &[]).unwrap_or_default();
        let there = folder.path().display();
        assert!(found.ends_with(&format!(
            "`{there}` is the last folder of the path that exists"
        )));
    }

    #[test]
    fn names_of_registries_are_told_from_paths() {
        let said = |text: &str| of_path(Path::new(text), &["tiny-chat"]).unwrap_or_default();
        for (text, part) in [
            ("Qwen/Qwen3-0.6B", "`bench pull Qwen/Qwen3-0.6B`"),
            ("hf.co/a/B-GGUF:Q4_K_M", "`bench pull a/B-GGUF:Q4_K_M`"),
            ("https://huggingface.co/a/b", "`bench pull a/b`"),
            (
                "https://huggingface.co/a/b/resolve/main/c.gguf",
                "`bench pull a/b:c.gguf`",
            ),
            ("hf://a/b", "`bench pull a/b`"),
            ("https://example.com/x.gguf", "download the file"),
            ("quokka:0.6b", "`-m OWNER/NAME`"),
            ("quokka", "`-m OWNER/NAME`"),
            ("tiny-cat", "did you mean `tiny-chat`?"),
        ] {
            assert!(said(text).contains(part), "{text}: {}", said(text));
        }
        for path in [
            "./quokka", "a/b.gguf", "/no/such", "no.gguf", "../a/b", "a/b/c",
        ] {
            assert!(!said(path).contains("pull"), "{path}: {}", said(path));
        }
    }
}
