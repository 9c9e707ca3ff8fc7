//! Keys in base64, as meta commands may send them: the usual alphabet, with padding.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};

/// As memcached reads it: what is left of the last byte's bits may be anything.
const KEYS: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Decodes `text` into `out`, which has room for three bytes for every four; how many there are.
/// `None`: the text is not base64, or is empty.
pub(super) fn decode(text: &[u8], out: &mut [u8]) -> Option<usize> {
    KEYS.decode_slice(text, out).ok().filter(|len| *len > 0)
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn text_is_decoded_or_refused() {
        let mut out = [0; 16];
        for (text, bytes) in [
            ("Zm9v", &b"foo"[..]),
            ("Zm8=", b"fo"),
            ("Zg==", b"f"),
            ("Zm9vYmE=", b"fooba"),
            ("//4=", b"\xff\xfe"),
            ("AAAA", b"\0\0\0"),
            // Bits that are left over.
            ("Zm9=", b"fo"),
            ("Zh==", b"f"),
        ] {
            let len = decode(text.as_bytes(), &mut out).expect(text);
            assert_eq!(&out[..len], bytes, "{text}");
        }
        for text in ["", "Z", "Zm9", "Zm9v=", "Z===", "====", "Zm=v", "Z!9v", "Zm9vZ", "Zg==Zg=="] {
            assert_eq!(decode(text.as_bytes(), &mut out), None, "{text}");
        }
    }
}
