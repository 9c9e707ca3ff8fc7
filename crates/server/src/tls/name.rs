//! What a client's certificate calls it: the common name of its subject, or the first name for which it was issued.
//!
//! Only certificates that an authority of the settings has vouched for come here. They are read all the same as bytes that may be anything: what does
//! not fit has no name.

/// `2.5.4.3`: the common name.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// `2.5.29.17`: alternative names of the subject.
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 0x11];

const SEQUENCE: u8 = 0x30;
const OBJECT: u8 = 0x06;
const OCTETS: u8 = 0x04;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;

/// Longest name; a longer one is none.
const NAME_BYTES_MAX: usize = 256;

/// One element of DER, and what follows it.
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    rest: &'a [u8],
}

/// The first element of these bytes.
fn first(bytes: &[u8]) -> Option<Element<'_>> {
    let (&tag, bytes) = bytes.split_first()?;
    let (&short, bytes) = bytes.split_first()?;
    let (length, bytes) = if short < 0x80 {
        (usize::from(short), bytes)
    } else {
        let digits = usize::from(short & 0x7f);
        if digits == 0 || digits > 4 {
            return None;
        }
        let (length, bytes) = bytes.split_at_checked(digits)?;
        (length.iter().fold(0, |sum, &digit| sum << 8 | usize::from(digit)), bytes)
    };
    let (content, rest) = bytes.split_at_checked(length)?;
    Some(Element { tag, content, rest })
}

/// The elements of these bytes, as far as they are any.
fn elements(bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let element = first(rest)?;
        rest = element.rest;
        Some((element.tag, element.content))
    })
}

/// The text of an element, if it can be a name: printable, and not too long.
fn text(content: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(content).ok()?;
    let fits = !text.is_empty() && text.len() <= NAME_BYTES_MAX;
    (fits && !text.chars().any(char::is_control)).then(|| text.to_owned())
}

/// The name in a certificate, which is DER.
pub(crate) fn of(certificate: &[u8]) -> Option<String> {
    let signed = first(certificate).filter(|it| it.tag == SEQUENCE)?.content;
    let body = first(signed).filter(|it| it.tag == SEQUENCE)?.content;
    let mut fields = elements(body).skip_while(|(tag, _)| *tag == VERSION);
    // Number, algorithm, issuer, validity.
    let (_, subject) = fields.nth(4).filter(|(tag, _)| *tag == SEQUENCE)?;
    let common = common_name(subject);
    common.or_else(|| {
        let (_, extensions) = fields.find(|(tag, _)| *tag == EXTENSIONS)?;
        alternative_name(first(extensions)?.content)
    })
}

/// The last common name of a subject, which is the most special one.
fn common_name(subject: &[u8]) -> Option<String> {
    let sets = elements(subject).flat_map(|(_, set)| elements(set));
    let named = sets.filter_map(|(_, pair)| {
        let kind = first(pair).filter(|it| it.tag == OBJECT && it.content == COMMON_NAME)?;
        text(first(kind.rest)?.content)
    });
    named.last()
}

/// The first alternative name that is a text: of a host (2), a person (1) or a thing (6).
fn alternative_name(extensions: &[u8]) -> Option<String> {
    elements(extensions).find_map(|(_, extension)| {
        let kind = first(extension).filter(|it| it.content == ALTERNATIVE_NAMES)?;
        let (_, names) = elements(kind.rest).find(|(tag, _)| *tag == OCTETS)?;
        let mut names = elements(first(names)?.content);
        names.find_map(|(tag, name)| matches!(tag & 0x1f, 1 | 2 | 6).then(|| text(name))?)
    })
}

#[cfg(test)]
mod tests {
    use super::of;

    /// An element.
    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).unwrap();
        let head = if length < 0x80 { vec![tag, length] } else { vec![tag, 0x81, length] };
        [head, content.to_vec()].concat()
    }

    fn certificate(subject: &[&str], hosts: &[&str]) -> Vec<u8> {
        let name = |text: &&str| {
            let pair = [der(0x06, super::COMMON_NAME), der(0x0c, text.as_bytes())].concat();
            der(0x31, &der(0x30, &pair))
        };
        let subject: Vec<u8> = subject.iter().flat_map(name).collect();
        let hosts: Vec<u8> = hosts.iter().flat_map(|host| der(0x82, host.as_bytes())).collect();
        let names = der(0x04, &der(0x30, &hosts));
        let extension = der(0x30, &[der(0x06, super::ALTERNATIVE_NAMES), names].concat());
        let body = [
            der(0xa0, &der(0x02, &[2])),
            der(0x02, &[7]),
            der(0x30, &[]),
            der(0x30, b""),
            der(0x30, &[]),
            der(0x30, &subject),
            der(0x30, &[]),
            der(0xa3, &der(0x30, &extension)),
        ];
        der(0x30, &der(0x30, &body.concat()))
    }

    #[test]
    fn the_subject_names_a_client_and_else_its_first_other_name() {
        assert_eq!(of(&certificate(&["shop"], &["a.example"])).as_deref(), Some("shop"));
        assert_eq!(of(&certificate(&["all", "shop"], &[])).as_deref(), Some("shop"));
        assert_eq!(of(&certificate(&[], &["a.example", "b"])).as_deref(), Some("a.example"));
        assert_eq!(of(&certificate(&[], &[])), None);
        assert_eq!(of(&certificate(&["a\r\nb"], &[])), None, "it is told in lines of text");
    }

    #[test]
    fn what_is_cut_short_has_no_name_and_ends_nothing() {
        let whole = certificate(&["shop"], &["a.example"]);
        for end in 0..whole.len() {
            of(&whole[..end]);
        }
        for at in 0..whole.len() {
            for byte in [0, 0x7f, 0x80, 0x84, 0xff] {
                let mut other = whole.clone();
                other[at] = byte;
                of(&other);
            }
        }
    }
}
