//! The keys of clients and what each may do: keys of the command line, and those of a file that may change while the server runs.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use lab_base::util::limited_read::{self, MAX_DEFINITION};
use lab_base::util::lock::lock;

use super::client::{KeyHolder, KeyLimits, N_DIGITS, is_digits};

/// The file is looked at no more often.
const LOOK: Duration = Duration::from_secs(1);
/// Maximum length of a name.
const MAX_NAME: usize = 64;

/// What a key allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// Requests to models.
    Use,
    /// Values within models: `/v1/lab/...`.
    Lab,
    /// What concerns all clients: models, adapters, the server's end.
    Admin,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Use => "use",
            Self::Lab => "lab",
            Self::Admin => "admin",
        }
    }
}

/// A key that is known.
#[derive(Clone, Debug)]
struct ApiKey {
    /// What stands for its client in stores and in the log: its name, or the first digits of its digest.
    owner: String,
    digest: [u8; 32],
    roles: Vec<Role>,
    limits: KeyLimits,
}

impl ApiKey {
    fn new(key: &str, roles: &[Role]) -> Self {
        let digest: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let digits = digest.iter().map(|byte| format!("{byte:02x}"));
        Self {
            owner: digits.collect::<String>()[..N_DIGITS].to_owned(),
            digest,
            roles: roles.to_vec(),
            limits: KeyLimits::default(),
        }
    }

    fn holder(&self) -> KeyHolder {
        KeyHolder {
            owner: self.owner.clone(),
            manages: self.roles.contains(&Role::Admin),
            limits: self.limits.clone(),
        }
    }
}

/// The keys of a server.
#[derive(Debug, Default)]
pub struct ApiKeys {
    fixed: Vec<ApiKey>,
    file: Option<KeysFile>,
}

#[derive(Debug)]
struct KeysFile {
    path: PathBuf,
    state: Mutex<FileState>,
}

#[derive(Debug)]
struct FileState {
    keys: Arc<Vec<ApiKey>>,
    stamp: Option<(SystemTime, u64)>,
    looked: Instant,
}

/// The form of a keys file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysText {
    #[serde(default)]
    key: Vec<KeyEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyEntry {
    name: String,
    sha256: String,
    #[serde(default = "usual")]
    roles: Vec<Role>,
    requests_per_minute: Option<NonZeroU32>,
    tokens_per_minute: Option<NonZeroU32>,
    queue_share: Option<f64>,
    max_tokens: Option<NonZeroU32>,
    models: Option<Vec<String>>,
}

fn usual() -> Vec<Role> {
    vec![Role::Use]
}

impl ApiKeys {
    /// Keys for using models and the lab, keys for everything, and those of a file.
    ///
    /// # Errors
    /// The file cannot be read, or has a mistake; with its place.
    pub fn new(usual: &[String], admin: &[String], file: Option<&Path>) -> Result<Self, String> {
        let of = |keys: &[String], roles: &[Role]| -> Vec<ApiKey> {
            keys.iter().map(|key| ApiKey::new(key, roles)).collect()
        };
        let mut fixed = of(admin, &[Role::Use, Role::Lab, Role::Admin]);
        fixed.extend(of(usual, &[Role::Use, Role::Lab]));
        let file = file.map(|path| {
            Ok::<_, String>(KeysFile {
                path: path.to_owned(),
                state: Mutex::new(FileState {
                    keys: Arc::new(read(path)?),
                    stamp: stamp(path),
                    looked: Instant::now(),
                }),
            })
        });
        Ok(Self {
            fixed,
            file: file.transpose()?,
        })
    }

    /// Whether everyone may use the server.
    pub fn is_empty(&self) -> bool {
        self.fixed.is_empty() && self.file.is_none()
    }

    /// Whether there is a file of keys.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Reads the file again now.
    pub fn reload(&self) {
        if let Some(file) = &self.file {
            file.look(true);
        }
    }

    /// The client of the name that stands for it, with what it may.
    pub(crate) fn holder(&self, owner: &str) -> KeyHolder {
        let of_file = self.file.as_ref().map(|file| file.look(false));
        let of_file = of_file.iter().flat_map(|all| all.iter());
        let known = self
            .fixed
            .iter()
            .chain(of_file)
            .find(|key| key.owner == owner);
        known.map_or_else(
            || KeyHolder {
                owner: owner.to_owned(),
                manages: self.is_empty(),
                limits: KeyLimits::default(),
            },
            ApiKey::holder,
        )
    }

    /// The client of a key, and its roles. The time does not depend on which key it is.
    pub(crate) fn find(&self, key: &[u8]) -> Option<(KeyHolder, Vec<Role>)> {
        let found: [u8; 32] = Sha256::digest(key).into();
        let of_file = self.file.as_ref().map(|file| file.look(false));
        let of_file = of_file.iter().flat_map(|all| all.iter());
        let mut client = None;
        for known in self.fixed.iter().chain(of_file) {
            let differs = known
                .digest
                .iter()
                .zip(&found)
                .fold(0, |sum, (a, b)| sum | (a ^ b));
            if differs == 0 && client.is_none() {
                client = Some((known.holder(), known.roles.clone()));
            }
        }
        client
    }
}

impl KeysFile {
    /// The keys of the file, read again if it has changed, or if that `is_asked` for. A file with a mistake changes nothing.
    fn look(&self, is_asked: bool) -> Arc<Vec<ApiKey>> {
        let mut state = lock(&self.state);
        if !is_asked && state.looked.elapsed() < LOOK {
            return Arc::clone(&state.keys);
        }
        state.looked = Instant::now();
        let now = stamp(&self.path);
        if is_asked || now != state.stamp {
            state.stamp = now;
            match read(&self.path) {
                Ok(keys) => {
                    tracing::info!(target: "server", keys = keys.len(), "{}: read again", self.path.display());
                    state.keys = Arc::new(keys);
                }
                Err(error) => tracing::error!("{error}; the keys stay as they were"),
            }
        }
        Arc::clone(&state.keys)
    }
}

/// Time of the last change and size; none if the file is not there.
fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let about = path.metadata().ok()?;
    Some((about.modified().ok()?, about.len()))
}

fn read(path: &Path) -> Result<Vec<ApiKey>, String> {
    let at = |error: String| format!("{}: {error}", path.display());
    let text = limited_read::text(path, MAX_DEFINITION).map_err(|error| at(error.to_string()))?;
    let parsed: KeysText = toml::from_str(&text).map_err(|error| at(error.to_string()))?;
    let mut keys: Vec<ApiKey> = Vec::with_capacity(parsed.key.len());
    for entry in parsed.key {
        let name = entry.name;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty()
            || name.len() > MAX_NAME
            || !name.bytes().all(is_name)
            || is_digits(&name)
        {
            return Err(at(format!(
                "the name `{}`, expected 1 to {MAX_NAME} letters, digits, `.`, `_` and `-`",
                name.escape_default()
            )));
        }
        if keys.iter().any(|known| known.owner == name) {
            return Err(at(format!("two keys have the name `{name}`")));
        }
        let digest = digest_of(&entry.sha256).ok_or_else(|| {
            at(format!(
                "`sha256` of `{name}`, expected 64 hexadecimal digits: printf %s KEY | sha256sum"
            ))
        })?;
        let share = entry.queue_share;
        if share.is_some_and(|share| !(share > 0.0 && share <= 1.0)) {
            return Err(at(format!(
                "`queue_share` of `{name}`, expected a number above 0 and at most 1"
            )));
        }
        keys.push(ApiKey {
            owner: name,
            digest,
            roles: entry.roles,
            limits: KeyLimits {
                requests_per_minute: entry.requests_per_minute,
                tokens_per_minute: entry.tokens_per_minute,
                queue_share: share,
                max_tokens: entry.max_tokens,
                models: entry.models,
            },
        });
    }
    Ok(keys)
}

fn digest_of(digits: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::client::name_of;

    fn sha256(key: &str) -> String {
        let digest = Sha256::digest(key.as_bytes());
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn keys_have_the_roles_of_their_option_or_entry() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("keys.toml");
        let text = format!(
            "[[key]]\nname = \"alice\"\nsha256 = \"{}\"\nroles = [\"use\", \"admin\"]\n\n[[key]]\nname = \"bob\"\nsha256 = \"{}\"\n",
            sha256("a"),
            sha256("b"),
        );
        std::fs::write(&path, text).expect("it is written");
        let keys = ApiKeys::new(&["u".into()], &["m".into()], Some(&path)).expect("sound");
        let of = |key: &str| {
            let found = keys.find(key.as_bytes());
            found.map(|(holder, roles)| (holder.owner, roles))
        };
        assert_eq!(
            of("a"),
            Some(("alice".into(), vec![Role::Use, Role::Admin]))
        );
        assert_eq!(of("b"), Some(("bob".into(), vec![Role::Use])));
        assert_eq!(of("u").expect("known").1, [Role::Use, Role::Lab]);
        assert!(of("m").expect("known").1.contains(&Role::Admin));
        assert_eq!((of("c"), of("")), (None, None));
        let (owner, _) = of("u").expect("known");
        assert_eq!(
            (name_of(&owner), name_of("alice"), name_of("")),
            (None, Some("alice"), None)
        );
    }

    #[test]
    fn a_key_of_a_file_has_the_limits_of_its_entry() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("keys.toml");
        let text = format!(
            "[[key]]\nname = \"a\"\nsha256 = \"{}\"\nrequests_per_minute = 60\ntokens_per_minute = 1000\n\
             queue_share = 0.25\nmax_tokens = 100\nmodels = [\"m*\"]\n",
            sha256("1")
        );
        std::fs::write(&path, text).expect("it is written");
        let keys = ApiKeys::new(&["u".into()], &[], Some(&path)).expect("sound");
        let (holder, _) = keys.find(b"1").expect("known");
        assert_eq!(keys.holder("a"), holder);
        assert!(holder.may_use("m1") && !holder.may_use("n"));
        let limits = &holder.limits;
        assert_eq!(limits.requests_per_minute.map(NonZeroU32::get), Some(60));
        assert_eq!(limits.tokens_per_minute.map(NonZeroU32::get), Some(1000));
        assert_eq!(limits.max_tokens.map(NonZeroU32::get), Some(100));
        assert_eq!(limits.queue_share, Some(0.25));
        let (unlimited, _) = keys.find(b"u").expect("known");
        assert_eq!(unlimited.limits, KeyLimits::default());
        // A key that is gone.
        assert!(!keys.holder("b").manages);
        assert!(ApiKeys::default().holder("").manages);
    }

    #[test]
    fn a_changed_file_holds_and_one_with_a_mistake_does_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("keys.toml");
        let entry = |name: &str, key: &str| {
            format!("[[key]]\nname = \"{name}\"\nsha256 = \"{}\"\n", sha256(key))
        };
        let write = |text: &str| std::fs::write(&path, text).expect("it is written");
        write(&entry("a", "1"));
        let keys = ApiKeys::new(&[], &[], Some(&path)).expect("sound");
        write(&(entry("a", "1") + &entry("b", "2")));
        keys.reload();
        assert!(keys.find(b"2").is_some());
        for mistake in [
            entry("a b", "1"),
            entry("a", "1") + &entry("a", "2"),
            "[[key]]\nname = \"a\"\nsha256 = \"12\"\n".into(),
            entry("a", "1") + "role = [\"use\"]\n",
            entry("a", "1") + "roles = [\"root\"]\n",
            entry("a", "1") + "requests_per_minute = 0\n",
            entry("a", "1") + "max_tokens = -1\n",
            entry("a", "1") + "queue_share = 0.0\n",
            entry("a", "1") + "queue_share = 1.5\n",
            entry("a", "1") + "queue_share = nan\n",
            entry("a", "1") + "models = \"m\"\n",
            "[[key".into(),
        ] {
            write(&mistake);
            keys.reload();
            assert!(keys.find(b"2").is_some(), "{mistake}");
            let error = ApiKeys::new(&[], &[], Some(&path)).expect_err(&mistake);
            assert!(error.contains("keys.toml"), "{error}");
        }
        // An empty file takes every key away, and opens nothing.
        write("");
        keys.reload();
        assert!(keys.find(b"2").is_none() && !keys.is_empty());
    }
}
