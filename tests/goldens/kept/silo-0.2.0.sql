-- The ledger and approvals of a gate of dpfed 0.2.0: a training of three rounds that has ended,
-- and one of four that has answered three. Read by tests/silo/test_owner.py.
-- ledger.sqlite
BEGIN TRANSACTION;
CREATE TABLE rows (number INTEGER PRIMARY KEY, body TEXT NOT NULL, hash TEXT NOT NULL);
INSERT INTO "rows" VALUES(1,'{"adjacency":"replace-one","adversary":"server","by":"command","colluders":1,"dataset":"sepsis","delta":1e-05,"epsilon":4.0,"keeps_person":false,"kind":"budget","time":1795060077.068,"unit":"record","write":1}','8a3171d493ed7d687b475c31974a77d762b29012ce0256421349d4457af57c55');
INSERT INTO "rows" VALUES(2,'{"adjacency":"replace-one","adversary":"malicious","client":0,"colluders":null,"covered":true,"dataset":"sepsis","event":{"events":[{"count":3,"event":{"kind":"Gaussian","noise_multiplier":12.923287085351532},"kind":"SelfComposed"}],"kind":"Composed"},"kind":"claim","lost":0.0,"mu_squared":0.07185140450247875,"plan":"d05a71cb18fb3330c92dc82a555af0723e254dbafe0a7b73e85f2a3787878555","time":1795060089.376,"training":"first","unit":"record","write":2}','c402c10ccf44397d3e399ad26f1e75e580671316e249e720b179b92cca18011a');
INSERT INTO "rows" VALUES(3,'{"adjacency":"replace-one","adversary":"malicious","attempt":0,"channel":"update","client":0,"colluders":null,"covered":true,"dataset":"sepsis","event":{"count":1,"event":{"kind":"Gaussian","noise_multiplier":12.923287085351532},"kind":"SelfComposed"},"kind":"book","lost":0.0,"mu_squared":0.023950468167492914,"place":0,"plan":"d05a71cb18fb3330c92dc82a555af0723e254dbafe0a7b73e85f2a3787878555","releases":1,"reserve":null,"round":0,"time":1795060090.635,"training":"first","unit":"record","write":3}','5ce04b33beb62ee51383b935abdbb1bc8440f365f2908b01102717b53e2393b5');
INSERT INTO "rows" VALUES(4,'{"kind":"confirm","rows":[3],"time":1795060090.73,"write":4}','d8cfdd3a74d1fee1bef681d0518774caefee973adcdabf60bae5ee0545151a08');
INSERT INTO "rows" VALUES(5,'{"adjacency":"replace-one","adversary":"malicious","attempt":0,"channel":"update","client":0,"colluders":null,"covered":true,"dataset":"sepsis","event":{"count":1,"event":{"kind":"Gaussian","noise_multiplier":12.923287085351532},"kind":"SelfComposed"},"kind":"book","lost":0.0,"mu_squared":0.023950468167492914,"place":1,"plan":"d05a71cb18fb3330c92dc82a555af0723e254dbafe0a7b73e85f2a3787878555","releases":1,"reserve":null,"round":1,"time":1795060092.197,"training":"first","unit":"record","write":5}','797090cc40999cdc737add550b9bfc6b3e5237d8cf813dc30d599f858bdf96be');
INSERT INTO "rows" VALUES(6,'{"kind":"confirm","rows":[5],"time":1795060092.251,"write":6}','d8953f98ccb8c5552ee2c948aa541bd4ba971aabdfb8bb8beafbe5746c6e142d');
INSERT INTO "rows" VALUES(7,'{"adjacency":"replace-one","adversary":"malicious","attempt":0,"channel":"update","client":0,"colluders":null,"covered":true,"dataset":"sepsis","event":{"count":1,"event":{"kind":"Gaussian","noise_multiplier":12.923287085351532},"kind":"SelfComposed"},"kind":"book","lost":0.0,"mu_squared":0.023950468167492914,"place":2,"plan":"d05a71cb18fb3330c92dc82a555af0723e254dbafe0a7b73e85f2a3787878555","releases":1,"reserve":null,"round":2,"time":1795060093.634,"training":"first","unit":"record","write":7}','6cf8935af2028bce892b133d7bca0b14219fafb377da867b58044cb37bf2b062');
INSERT INTO "rows" VALUES(8,'{"kind":"confirm","rows":[7],"time":1795060093.705,"write":8}','31477fa445890112c1079891d00859052caf15c99810d4d3f78318a0b85f826d');
INSERT INTO "rows" VALUES(9,'{"adjacency":"replace-one","adversary":"malicious","client":0,"colluders":null,"covered":true,"dataset":"sepsis","event":{"events":[{"count":4,"event":{"kind":"Gaussian","noise_multiplier":7.975249790978709},"kind":"SelfComposed"}],"kind":"Composed"},"kind":"claim","lost":0.0,"mu_squared":0.25155409637874504,"plan":"c4b757056fdf93298cc02033ed05c017b1692c2ea4f0d09651174e8e67cc6107","time":1795060107.129,"training":"second","unit":"record","write":9}','db2980bb096b7fe6d8c2e4fde84d0832104eba64691268558b0c8ce81fe4e286');
INSERT INTO "rows" VALUES(10,'{"adjacency":"replace-one","adversary":"malicious","attempt":0,"channel":"update","client":0,"colluders":null,"covered":true,"dataset":"sepsis","event":{"count":1,"event":{"kind":"Gaussian","noise_multiplier":7.975249790978709},"kind":"SelfComposed"},"kind":"book","lost":0.0,"mu_squared":0.06288852409468626,"place":0,"plan":"c4b757056fdf93298cc02033ed05c017b1692c2ea4f0d09651174e8e67cc6107","releases":1,"reserve":null,"round":0,"time":1795060108.205,"training":"second","unit":"record","write":10}','4918afdad800154a082c2a547f25d50ec14a5b1ec6a66a8cc6443cb5e77035ad');
INSERT INTO "rows" VALUES(11,'{"kind":"confirm","rows":[10],"time":1795060108.262,"write":11}','865baaeb1c8853e86b5ca938e1a65c1000aabd6d4162700bbaf5fb8e9438410d');
INSERT INTO "rows" VALUES(12,'{"adjacency":"replace-one","adversary":"malicious","attempt":0,"channel":"update","client":0,"colluders":null,"covered":true,"dataset":"sepsis","event":{"count":1,"event":{"kind":"Gaussian","noise_multiplier":7.975249790978709},"kind":"SelfComposed"},"kind":"book","lost":0.0,"mu_squared":0.06288852409468626,"place":1,"plan":"c4b757056fdf93298cc02033ed05c017b1692c2ea4f0d09651174e8e67cc6107","releases":1,"reserve":null,"round":1,"time":1795060109.611,"training":"second","unit":"record","write":12}','64ed7c3335b975ad7d3184a4c057d51fbd490c4702953252b521b022ca5f9d11');
INSERT INTO "rows" VALUES(13,'{"kind":"confirm","rows":[12],"time":1795060109.713,"write":13}','f907d573f8067fc80905c71a996faed614da51dad3e1d9e3819215d22a6724be');
INSERT INTO "rows" VALUES(14,'{"adjacency":"replace-one","adversary":"malicious","attempt":0,"channel":"update","client":0,"colluders":null,"covered":true,"dataset":"sepsis","event":{"count":1,"event":{"kind":"Gaussian","noise_multiplier":7.975249790978709},"kind":"SelfComposed"},"kind":"book","lost":0.0,"mu_squared":0.06288852409468626,"place":2,"plan":"c4b757056fdf93298cc02033ed05c017b1692c2ea4f0d09651174e8e67cc6107","releases":1,"reserve":null,"round":2,"time":1795060111.243,"training":"second","unit":"record","write":14}','9aea039c89f88bb44391121fd0221e4e9e6e49369966fe2d47b6eb79b0440bd6');
INSERT INTO "rows" VALUES(15,'{"kind":"confirm","rows":[14],"time":1795060111.304,"write":15}','73c4d6f1a3d3e737cbd66566dc07251fbe4213bec8f386fdb4d486f27da4c8ca');
CREATE TRIGGER no_update BEFORE UPDATE ON rows BEGIN SELECT RAISE(ABORT, 'rows are only ever added'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON rows BEGIN SELECT RAISE(ABORT, 'rows are only ever added'); END;
COMMIT;
-- approvals.sqlite
BEGIN TRANSACTION;
CREATE TABLE approvals (name TEXT PRIMARY KEY, fingerprint TEXT, terms TEXT, at TEXT,
    until TEXT, revoked TEXT DEFAULT '', by TEXT);
INSERT INTO "approvals" VALUES('first','869d59dfa6ece2af9c1b43301d5e88031dc89176fd32c3342e5b5563ab2a6ba4','name = "first"
method = "dp-fedgd"
rounds = 3
seed = 7

[privacy]
epsilon = 1.0
noise = "keyed"

[evaluation]
kind = "off"

[terms]
dataset = "sepsis"
shape = [
    6,
]
sizes = [
    90.0,
    90.0,
    90.0,
]
dpfed = "0.2.0"
classes = 3
roster = ""
train = ""

[terms.packages]
','2026-11-19T03:47:08+00:00','2026-11-20T03:47:08+00:00','','root');
INSERT INTO "approvals" VALUES('second','59f2e0299cc34448829d5411dc618011e318291b58707f57c67cef05be6b590c','name = "second"
method = "dp-fedgd"
rounds = 4
seed = 7

[privacy]
epsilon = 2.0
noise = "keyed"

[evaluation]
kind = "off"

[terms]
dataset = "sepsis"
shape = [
    6,
]
sizes = [
    90.0,
    90.0,
    90.0,
]
dpfed = "0.2.0"
classes = 3
roster = ""
train = ""

[terms.packages]
','2026-11-19T03:47:08+00:00','2026-11-20T03:47:08+00:00','','root');
CREATE TABLE events (day TEXT, kind TEXT, training TEXT, count INTEGER, last TEXT,
    said TEXT, PRIMARY KEY (day, kind, training));
INSERT INTO "events" VALUES('2026-11-19','approved','first',1,'2026-11-19T03:47:08+00:00','by root, until 2026-11-20');
INSERT INTO "events" VALUES('2026-11-19','approved','second',1,'2026-11-19T03:47:08+00:00','by root, until 2026-11-20');
INSERT INTO "events" VALUES('2026-11-19','answered','first',4,'2026-11-19T03:48:13+00:00','');
INSERT INTO "events" VALUES('2026-11-19','answered','second',4,'2026-11-19T03:48:31+00:00','');
COMMIT;
