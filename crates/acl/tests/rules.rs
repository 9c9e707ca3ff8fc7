//! Rules as clients give them: what they allow, how they are shown, and what is wrong with others.

use headwater_acl::{Denied, User, Users, demands, hash_of};
use headwater_command::OwnedArgs;
use headwater_protocol::resp::{decode, find};

fn user(rules: &[&str]) -> User {
    User::new(b"ann").with(rules.iter().map(|rule| rule.as_bytes())).unwrap()
}

fn error(rules: &[&str]) -> String {
    User::new(b"ann").with(rules.iter().map(|rule| rule.as_bytes())).unwrap_err().to_string()
}

/// What a user is told who sends this.
fn check(user: &User, request: &str) -> Result<(), Denied> {
    let args: OwnedArgs = request.split(' ').map(str::as_bytes).collect();
    let spec = find(args.args()).unwrap_or_else(|_| panic!("{request} is no command"));
    let command = decode(spec, args.args()).unwrap_or_else(|_| panic!("{request} is ill-formed"));
    let mut needs = Vec::new();
    demands(spec, args.args(), &command, &mut needs);
    user.check(spec, args.args().get(1), &needs)
}

fn allowed(user: &User, request: &str) -> bool {
    check(user, request).is_ok()
}

fn shown(rules: &[&str]) -> String {
    String::from_utf8(user(rules).line()).unwrap()
}

#[test]
fn users_are_shown_as_in_redis() {
    let none = "user ann off sanitize-payload resetchannels -@all";
    assert_eq!(shown(&[]), none);
    assert_eq!(shown(&["on", "nopass", "~*", "&*", "+@all", "reset"]), none);
    let default = Users::default();
    let line = default.default_user().line();
    assert_eq!(line, b"user default on nopass sanitize-payload ~* &* +@all");
    let cases: [(&[&str], &str); 11] = [
        (&["+get", "+@read", "-GET"], "resetchannels -@all +@read -get"),
        (&["+@all", "-@dangerous"], "resetchannels +@all -@dangerous"),
        (&["+@all", "-get", "+@all"], "resetchannels +@all"),
        (&["+config|get", "+config"], "resetchannels -@all +config"),
        (&["+config", "-config|set"], "resetchannels -@all +config -config|set"),
        (&["-@all", "+select|0"], "resetchannels -@all +select|0"),
        (&["%R~a", "~b", "%W~c*", "%RW~d"], "%R~a ~b %W~c* ~d resetchannels -@all"),
        (&["%R~a", "%W~a"], "~a resetchannels -@all"),
        (&["~a", "resetkeys", "allkeys"], "~* resetchannels -@all"),
        (&["&a", "&b:*"], "resetchannels &a &b:* -@all"),
        (&["&a", "allchannels"], "&* -@all"),
    ];
    for (rules, text) in cases {
        assert_eq!(shown(rules), format!("user ann off sanitize-payload {text}"), "{rules:?}");
    }
    let hash: String = hash_of(b"pw").iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hash, "30c952fab122c3f9759f02a6d95c3758b246b4fee239957b2d4fee46e26170c4");
    let line = shown(&["on", ">pw", "(%R~x* +@read)", "( +ping", "&c", ")"]);
    assert_eq!(
        line,
        format!(
            "user ann on sanitize-payload #{hash} resetchannels -@all (%R~x* resetchannels -@all \
             +@read) (resetchannels &c -@all +ping)"
        )
    );
    // A line says all of its user.
    let mut users = Users::from_file(line.as_bytes()).unwrap();
    assert_eq!(users.get(b"ann").unwrap().line(), line.as_bytes());
    assert_eq!(Users::from_file(&users.to_file()).unwrap(), users);
    users.set(b"ann", ["clearselectors"].iter().map(|rule| rule.as_bytes())).unwrap();
    assert!(users.get(b"ann").unwrap().selectors.is_empty());
}

#[test]
fn what_is_wrong_with_rules_is_told_in_the_words_of_redis() {
    let of = |rule: &str, why: &str| format!("Error in ACL SETUSER modifier '{rule}': {why}");
    let unknown = "Unknown command or category name in ACL";
    for rule in [
        "+nope",
        "-nope",
        "+@nope",
        "-@nope",
        "+config|nope",
        "+nope|x",
        "-select|0",
        "+get|a|b",
        "+",
        "-",
        "+nope|",
    ] {
        assert_eq!(error(&[rule]), of(rule, unknown));
    }
    let first = "Allowing first-arg of a subcommand is not supported";
    assert_eq!(error(&["+config|get|x"]), of("+config|get|x", first));
    for rule in ["nope", "", "%~x", "%X~x", "%R", "+get|", "~a b", "&a b"] {
        assert_eq!(error(&[rule]), of(rule, "Syntax error"), "{rule}");
    }
    assert!(error(&["allkeys", "~a"]).contains("Adding a pattern after the * pattern"));
    assert!(error(&["&*", "&a"]).contains("'allchannels' flag"));
    assert!(error(&["#abc"]).contains("must be exactly 64 characters"));
    assert!(error(&[&format!("#{}", "G".repeat(64))]).contains("lowercase hexadecimal"));
    let wrong = error(&["<secret"]);
    assert!(wrong.contains("does not exist") && !wrong.contains("secret"), "{wrong}");
    for open in [&["(+get"][..], &["(+get", "~a"]] {
        let unmatched = "Unmatched parenthesis in acl selector starting at '(+get'.";
        assert_eq!(error(open), unmatched, "{open:?}");
    }
    let mut users = Users::default();
    for name in ["", "a b", "a\0"] {
        let refused = users.set(name.as_bytes(), core::iter::empty()).unwrap_err().to_string();
        assert_eq!(refused, "Usernames can't contain spaces or null characters");
    }
    assert!(users.remove(b"default").is_err() && !users.remove(b"nobody").unwrap());
    let file = |text: &str| Users::from_file(text.as_bytes()).unwrap_err();
    assert_eq!(file("# users\n\nusr ann on").0, 3);
    assert!(file("user ann on\nuser ann off").1.to_string().contains("Duplicate user 'ann'"));
    assert!(file("user ann on bad").1.to_string().contains("'bad'"));
    // All rules or none.
    let before = users.clone();
    assert!(users.set(b"default", ["off", "bad"].iter().map(|rule| rule.as_bytes())).is_err());
    assert_eq!(users, before);
}

#[test]
fn passwords_are_several_and_any_of_them_lets_in() {
    let mut users = Users::default();
    let mut set = |rules: &[&str]| {
        users.set(b"ann", rules.iter().map(|rule| rule.as_bytes())).unwrap();
        ["one", "two", ""].map(|word| users.authenticate(Some(b"ann"), word.as_bytes()).is_some())
    };
    assert_eq!(set(&[">one"]), [false; 3], "off");
    assert_eq!(set(&["on"]), [true, false, false]);
    assert_eq!(set(&[">two"]), [true, true, false]);
    assert_eq!(set(&["<one"]), [false, true, false]);
    assert_eq!(set(&["nopass"]), [true; 3]);
    assert_eq!(set(&["resetpass"]), [false; 3]);
    assert!(users.authenticate(Some(b"bob"), b"").is_none());
    assert!(users.authenticate(None, b"whatever").is_some(), "the default user has no password");
}

#[test]
fn commands_and_keys_are_allowed_as_in_redis() {
    let reader = user(&["+@read", "%R~r*", "%W~w*", "~b*"]);
    for (request, may) in [
        ("GET r1", true),
        ("GET b1", true),
        ("GET w1", false),
        ("MGET r1 b1", true),
        ("MGET r1 w1", false),
        ("STRLEN w1", true),
        ("EXISTS w1 r1", true),
        ("EXISTS x", false),
        ("SET b1 1", false),
        ("AUTH x", true),
        ("PING", false),
    ] {
        assert_eq!(allowed(&reader, request), may, "{request}");
    }
    let writer = user(&["+@all", "%R~r*", "%W~w*", "~b*"]);
    for (request, may) in [
        ("SET w1 1", true),
        ("SET w1 1 GET", false),
        ("SET b1 1 GET", true),
        ("SET r1 1", false),
        ("INCR w1", false),
        ("INCR b1", true),
        ("BITFIELD r1 GET u4 0", true),
        ("BITFIELD r1 GET u4 0 SET u4 0 1", false),
        ("BITFIELD w1 GET u4 0", false),
        ("BITFIELD w1 SET u4 0 1", false),
        ("BITFIELD b1 INCRBY u4 0 1", true),
        ("APPEND w1 x", true),
        ("GETDEL w1", false),
        ("DEL w1 b1", true),
        ("RENAME w1 w2", false),
        ("RENAME b1 w2", true),
        ("COPY r1 w1", true),
        ("COPY w1 r1", false),
        ("MSET w1 1 b1 2", true),
        ("MSET w1 1 r1 2", false),
        ("FN.CALL f r1 x", true),
        ("FN.CALL f r1 UPDATE x", false),
        ("FN.CALL f b1 UPDATE x", true),
        ("FLUSHALL", false),
        ("RANDOMKEY", false),
        ("KEYS *", false),
        ("KEYS r1*", true),
        ("KEYS r?", true),
        ("KEYS [r]1", false),
        ("SCAN 0", false),
        ("SCAN 0 MATCH b*", true),
        ("SCAN 0 MATCH w*", false),
        ("DBSIZE", true),
        ("PUBLISH c x", false),
        ("TABLE.SET bt BOUNDARY 1", true),
        ("TABLE.SET rt BOUNDARY 1", false),
        ("CLIENT TRACKING ON", true),
        ("CLIENT TRACKING ON BCAST", false),
        ("CLIENT TRACKING ON BCAST PREFIX r", true),
        ("CLIENT TRACKING ON BCAST PREFIX r PREFIX w", false),
        ("CLIENT TRACKING OFF", true),
    ] {
        assert_eq!(allowed(&writer, request), may, "{request}");
    }
    let channels = user(&["+@all", "&c:*"]);
    for (request, may) in [
        ("PUBLISH c:1 message", true),
        ("PUBLISH d c:1", false),
        ("SUBSCRIBE c:1 c:2", true),
        ("SUBSCRIBE c:1 d", false),
        ("PSUBSCRIBE c:*", true),
        ("PSUBSCRIBE c:1*", false),
        ("UNSUBSCRIBE d", true),
    ] {
        assert_eq!(allowed(&channels, request), may, "{request}");
    }
    let some = user(&["+config|get", "+select|0", "+@audit", "+@define", "-flow.add", "~*"]);
    for (request, may) in [
        ("CONFIG GET x", true),
        ("CONFIG SET x y", false),
        ("SELECT 0", true),
        ("VERIFY a b", true),
        ("JOIN.ADD n x", true),
        ("FN.LOAD n x", true),
        ("SOURCE.DROP x", false),
        ("FLOW.ADD n ON t|<a> PUBLISH c", false),
        ("RANGE a b", false),
    ] {
        assert_eq!(allowed(&some, request), may, "{request}");
    }
}

#[test]
fn selectors_do_not_add_up() {
    let two = user(&["+@read", "%R~r*", "(+@write ~w*)"]);
    assert!(allowed(&two, "GET r1") && allowed(&two, "SET w1 1"));
    assert!(!allowed(&two, "GET w1") && !allowed(&two, "SET r1 1"));
    assert_eq!(check(&two, "COPY r1 w1"), Err(Denied::Key(b"r1".to_vec())), "by no selector");
    let three = user(&["+mget", "%R~a", "(+mget %R~a %R~b)"]);
    assert_eq!(check(&three, "MGET a b c"), Err(Denied::Key(b"c".to_vec())), "the furthest one");
    assert_eq!(check(&two, "DEL r1"), Err(Denied::Key(b"r1".to_vec())));
    assert_eq!(check(&two, "PING"), Err(Denied::Command("ping")));
}

#[test]
fn rights_are_compared() {
    let one = user(&["+get", "+select|0", "~a*", "%R~b|*", "&c"]);
    for (rules, more) in [
        (&["+get", "+select", "~a*", "~b|*", "&c", "&d"][..], true),
        (&["+@all", "~*", "&*"], true),
        (&["+get", "+select|0", "~a*", "%R~b*", "&c"], true),
        (&["+select|0", "~a*", "%R~b|*", "&c"], false),
        (&["+get", "~a*", "%R~b|*", "&c"], false),
        (&["+get", "+select|0", "%R~a*", "%R~b|*", "&c"], false),
        (&["+get", "+select|0", "~ab*", "%R~b|*", "&c"], false),
        (&["+get", "+select|0", "~a*", "%R~b|*"], false),
        (&["(+@all ~* &*)"], true),
        (&["+get", "+select|0", "~a*", "(+get %R~b|* &c)"], false),
    ] {
        assert_eq!(user(rules).covers(&one), more, "{rules:?}");
    }
}

#[test]
fn nobody_is_unrestricted_who_may_not_do_everything() {
    assert!(user(&["~*", "&*", "+@all"]).is_unrestricted());
    assert!(user(&["(~* &* +@all)"]).is_unrestricted());
    for rule in ["-get", "-config|set", "resetkeys", "resetchannels", "-@all"] {
        assert!(!user(&["~*", "&*", "+@all", rule]).is_unrestricted(), "{rule}");
    }
    assert!(user(&["~*", "&*", "+@all", "-get", "+get"]).is_unrestricted());
    assert!(!user(&["%R~*", "&*", "+@all"]).is_unrestricted());
}
