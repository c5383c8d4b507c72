//! Recognises files of other formats by their first bytes.
//!
//! Broken downloads and models in formats of other programs are recognised, and the message states the next step. Only
//! the first [`HEAD`] bytes are examined. Readers of formats call this when they refuse a file.

const HEAD: usize = 512;

/// The format of a file by its first bytes, with the next step; none if it is unknown.
pub(super) fn identify(head: &[u8]) -> Option<&'static str> {
    let head = &head[..head.len().min(HEAD)];
    let text: String = String::from_utf8_lossy(head).trim_start().to_lowercase();
    let is = |start: &str| text.starts_with(start);
    // The length of a header in 8 bytes, then the start of its JSON object.
    let is_safetensors = head.len() > 9 && head[8] == b'{' && head[5..8] == [0; 3];
    Some(match head {
        [] => "the file is empty; download it again",
        _ if is("version https://git-lfs.github.com/spec/") => {
            "this is a Git LFS pointer and not the file itself; fetch it with `git lfs pull`, or download \
             the file by itself"
        }
        _ if is("<!doctype html") || is("<html") => {
            "this is an HTML page that was saved in place of the file; download the file itself \
             (its address has `/resolve/` where that of the page has `/blob/`)"
        }
        _ if is("<?xml") => {
            "this is an XML document, as servers answer with when they refuse; download the file again"
        }
        _ if is("{\"error\"") || is("invalid username or password") || is("access to model") => {
            "this is the error message of a server that was saved in place of the file; log in there, or \
             accept the model's terms, and download the file again"
        }
        [b'P', b'K', 3, 4, ..] | [0x80, 2..=5, ..] => {
            "this is a PyTorch checkpoint (pickle); convert it to safetensors, or take a folder that has \
             safetensors"
        }
        [b'G', b'G', b'U', b'F', ..] => {
            "this is a GGUF file; name it as the model (`-m FILE.gguf`)"
        }
        [
            b'l' | b't' | b'f' | b'a',
            b'm' | b'j' | b'l',
            b'g',
            b'g',
            ..,
        ]
        | [b'g', b'g', b'm', b'l', ..] => {
            "this is a GGML file from before GGUF; take a GGUF file of the model"
        }
        [0x1f, 0x8b, ..]
        | [b'B', b'Z', b'h', ..]
        | [0xfd, b'7', b'z', b'X', ..]
        | [0x28, 0xb5, 0x2f, 0xfd, ..] => "this is a compressed archive; unpack it first",
        _ if is_safetensors => {
            "this is a safetensors file; name the folder that holds it and its `config.json`"
        }
        _ if head.iter().all(|byte| *byte == 0) => {
            "the file begins with zeros: its download did not complete; download it again"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_something_else_are_known_by_their_begin() {
        let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n";
        for (head, expected) in [
            (&b""[..], "the file is empty"),
            (lfs, "a Git LFS pointer"),
            (b"\n <!DOCTYPE html><html>", "an HTML page"),
            (b"{\"error\":\"Repository not found\"}", "the error message"),
            (
                b"PK\x03\x04\x00\x00archive/data.pkl",
                "a PyTorch checkpoint",
            ),
            (
                b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
                "a PyTorch checkpoint",
            ),
            (b"GGUF\x03\x00\x00\x00", "a GGUF file"),
            (b"tjgg\x03\x00\x00\x00", "a GGML file from before"),
            (b"\x1f\x8b\x08\x00", "a compressed archive"),
            (
                b"\x40\x00\x00\x00\x00\x00\x00\x00{\"__metadata__\"",
                "a safetensors file",
            ),
            (&[0; 64], "begins with zeros"),
        ] {
            let found = identify(head).unwrap_or("nothing");
            assert!(found.contains(expected), "{expected}: {found}");
        }
        assert_eq!(identify(b"some other bytes"), None);
        assert_eq!(identify(b"{\"version\": \"1.0\"}"), None);
    }
}
