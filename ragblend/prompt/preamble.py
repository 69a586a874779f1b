"""The text behind which chunks are prefilled: other documents, as a chunk would meet them in a prompt.

In a prompt a chunk stands among other chunks; prefilled right behind the prompt's beginning it would
stand alone, and its keys and values would differ more from those of a full prefill. The preamble is
part of the anchor only: no prompt contains it.
"""

PREAMBLE = """\
[Tide mills]
A tide mill takes its power from the sea. A dam with a gate is built across a small inlet; the rising tide fills the \
pond behind it, and when the tide has fallen far enough the water is let out over a wheel. The oldest known ones are \
from the seventh century. By 1650 several hundred were at work on the coasts of Europe.

[Marta Oyelaran]
Marta Oyelaran (born 14 March 1951) is an engineer and a former rower. She studied in Lagos and in Delft, and led the \
team that built the Harrow Street bridge. In 1988 she founded a school for surveyors together with her brother Daniel, \
who was its director until 2004.

[Returns > How long you have]
You can send an article back within 30 days of delivery. Put it into its box with the form that came with it. We pay \
for the parcel if the article is faulty; otherwise it costs 4.90 euros. Your money is back on your account within ten \
working days. Opened software, and batteries, cannot be returned.

[Common swift]
The common swift spends most of its life in the air: it eats, drinks and even sleeps there, and comes down only to \
breed. Its wings are long and curved, about 40 centimetres across. It winters in Africa, south of the equator, and \
reaches its nest in the first days of May.

[Release notes > 2.4]
- The import reads files of up to 2 GB; until now the limit was 500 MB.
- `sync --all` no longer stops at the first error, and it returns status 1 when there was one.
- The setting `timeout` is given in seconds. Values of the old form, such as `5m`, are refused.

[The treaty of Aldmere]
The treaty of Aldmere ended the war between the river towns and the crown. It was signed on 3 October 1402, after nine \
weeks of talks. The towns kept their courts and paid a tax of one part in twenty; in return the king gave back the \
three castles that he had taken. It was renewed twice, and lost its force in 1519.

[Safety]
Unplug the machine before you open the cover. Let the blade come to a full stop. Do not reach under the housing, and \
keep children and animals at least fifteen metres away. Wear firm shoes and eye protection. If the warning lamp stays \
on, switch the machine off and call the workshop.

[Salt marshes]
Salt marshes lie between land and sea and are flooded at high water. Few plants bear so much salt; glasswort grows \
lowest, and sea lavender higher up. They store carbon, break the force of waves, and are a nursery for fish. In the \
last hundred years about half of them have been drained.

"""
